// A rank's tiers for offloaded state and activations, as --offload,
// --offload_dir, --host_budget, --pin_memory and --compression select them, and
// the tier of the quantized weights of --base_weights.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto tiers,
//                            OffloadTiers::Create(settings, tier_log));
//   tiers->AddTo(options);
//
// Files are unlinked when they are created, so that they disappear however the
// process ends.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_OFFLOAD_TIERS_H_
#define TESSERA_TOOLS_TRAIN_LOOP_OFFLOAD_TIERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/pressure/system_memory.h"
#include "offload/tier/accounting.h"
#include "offload/tier/memory_tier.h"
#include "tools/train/report/run_result.h"
#include "tools/train/report/tier_log.h"
#include "tools/train/settings/offload_choice.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/settings/settings.h"
#include "zero3/config/offload_config.h"

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

  // Points `options` at the tiers, which must outlive the run, and sets
  // --device_budget. Gradients are offloaded only if they are partitioned
  // (stages 2 and 3).
  void AddTo(RunOptions& options) const;

  // The reason if the system refused to pin the memory; it is then pageable.
  absl::Status pin_status() const;

  // Moves blocks from host memory to --offload_dir as --offload_strategy
  // demands for the reading, and returns their bytes; 0 if the tiers are not
  // both in use.
  absl::StatusOr<int64_t> Relieve(const offload::MemoryReading& reading);

  // The peak bytes in host tiers and in files.
  BytesByPurpose host_bytes() const;
  BytesByPurpose file_bytes() const;

 private:
  explicit OffloadTiers(const Settings& settings);

  absl::Status MakeDirectory(const std::string& path);
  absl::Status CreateTier(const Settings& settings,
                          std::shared_ptr<TierLog> log);
  BytesByPurpose Peaks(bool of_file) const;

  const zero3::OffloadConfig config_;
  const bool offloads_activations_;
  const std::shared_ptr<offload::Accounting> buffers_;  // For the file tier.
  std::vector<std::string> made_directories_;           // Innermost first.
  zero3::OffloadTier made_;
  std::unique_ptr<offload::MemoryTier> tier_;  // Null: nothing is offloaded.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_OFFLOAD_TIERS_H_
