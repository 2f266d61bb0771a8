// OffloadTiers: where a rank's offloaded state and activations lie, as
// --offload,
// --offload_dir and --compression say.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto tiers,
//                            OffloadTiers::Create(settings, tier_log));
//   tiers->AddTo(options);
//
// Files have no name: whatever ends the process, they are gone.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_OFFLOAD_TIERS_H_
#define TESSERA_TOOLS_TRAIN_LOOP_OFFLOAD_TIERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/tier/accounting.h"
#include "offload/tier/memory_tier.h"
#include "tools/train/loop/run_options.h"
#include "tools/train/loop/run_result.h"
#include "tools/train/report/tier_log.h"
#include "tools/train/settings/offload_choice.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

class OffloadTiers {
 public:
  // Makes --offload_dir where it is missing. InvalidArgument where the codec is
  // unknown; else, with the flag, what the file system says.
  static absl::StatusOr<std::unique_ptr<OffloadTiers>> Create(
      const Settings& settings, std::shared_ptr<TierLog> log);

  // Takes away the directories that Create made, where they are empty.
  ~OffloadTiers();

  OffloadTiers(const OffloadTiers&) = delete;
  OffloadTiers& operator=(const OffloadTiers&) = delete;

  // Points `options` at the tiers. Gradients follow the parameters where they
  // are sharded (stages 2 and 3) and all is offloaded. They outlive the run.
  void AddTo(RunOptions& options) const;

  // The most that was held in host tiers, and in files.
  BytesByPurpose host_bytes() const;
  BytesByPurpose file_bytes() const;

 private:
  explicit OffloadTiers(const Settings& settings);

  absl::Status MakeDirectory(const std::string& path);
  absl::Status CreateTier(const Settings& settings,
                          std::shared_ptr<TierLog> log);
  BytesByPurpose Peaks(bool of_file) const;

  const OffloadChoice offload_;
  const std::shared_ptr<offload::Accounting> buffers_;  // Of files.
  std::vector<std::string> made_directories_;           // The innermost first.
  std::unique_ptr<offload::MemoryTier> tier_;  // Null: nothing is offloaded.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_OFFLOAD_TIERS_H_
