// A rank's tiers for offloaded state and activations, as --offload,
// --offload_dir and --compression select them.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto tiers,
//                            OffloadTiers::Create(settings, tier_log));
//   tiers->AddTo(options);
//
// Files are unlinked when they are created, so that they disappear however the
// process ends.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_OFFLOAD_TIERS_H_
#define TESSERA_TOOLS_TRAIN_LOOP_OFFLOAD_TIERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/tier/accounting.h"
#include "offload/tier/memory_tier.h"
#include "tools/train/report/run_result.h"
#include "tools/train/report/tier_log.h"
#include "tools/train/settings/offload_choice.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

class OffloadTiers {
 public:
  // Creates --offload_dir if it does not exist. InvalidArgument if the codec is
  // unknown; errors of the file system name the flag.
  static absl::StatusOr<std::unique_ptr<OffloadTiers>> Create(
      const Settings& settings, std::shared_ptr<TierLog> log);

  // Removes the directories that Create made, if they are empty.
  ~OffloadTiers();

  OffloadTiers(const OffloadTiers&) = delete;
  OffloadTiers& operator=(const OffloadTiers&) = delete;

  // Points `options` at the tiers, which must outlive the run. With
  // --offload=all, gradients that are partitioned (stages 2 and 3) are
  // offloaded too.
  void AddTo(RunOptions& options) const;

  // The peak bytes in host tiers and in files.
  BytesByPurpose host_bytes() const;
  BytesByPurpose file_bytes() const;

 private:
  explicit OffloadTiers(const Settings& settings);

  absl::Status MakeDirectory(const std::string& path);
  absl::Status CreateTier(const Settings& settings,
                          std::shared_ptr<TierLog> log);
  BytesByPurpose Peaks(bool of_file) const;

  const OffloadChoice offload_;
  const std::shared_ptr<offload::Accounting> buffers_;  // For the file tier.
  std::vector<std::string> made_directories_;           // Innermost first.
  std::unique_ptr<offload::MemoryTier> tier_;  // Null: nothing is offloaded.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_OFFLOAD_TIERS_H_
