// SpillTier: a near tier with a budget, in front of a far tier that takes the
// blocks for which the near one has no room.
#ifndef TESSERA_OFFLOAD_TIER_SPILL_TIER_H_
#define TESSERA_OFFLOAD_TIER_SPILL_TIER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "offload/pressure/pressure_policy.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

// Example:
//
//   auto host = std::make_shared<HostTier>(
//       std::make_shared<Accounting>("host", 8LL << 30));
//   SpillTier tier(host, disk);   // a FileTier
//   ...
//   // Between steps, if the machine runs short of memory:
//   TESSERA_ASSIGN_OR_RETURN(const MemoryReading reading, system.Read());
//   TESSERA_ASSIGN_OR_RETURN(const int64_t moved,
//                            tier.Relieve(policy, reading));
//
// A new block goes to the near tier, or to the far one if the near tier's
// budget or memory is exhausted. It stays where it is, except that a block that
// grows beyond the near budget, and the blocks that Spill and Relieve choose,
// move to the far tier. A block is put into the far tier before it is dropped
// from the near one, so that after any error it is still complete. If neither
// tier has room, ResourceExhausted contains the messages of both.
//
// Blocks in the near tier can be mapped if that tier can map; a block with a
// live view is not moved. A move blocks other calls until the far tier has
// stored the block.
class SpillTier final : public MemoryTier {
 public:
  // `near` executes its operations within the call, as HostTier does. A
  // CompressedTier belongs above this tier, not between.
  SpillTier(std::shared_ptr<MemoryTier> near, std::shared_ptr<MemoryTier> far);

  std::string_view name() const override { return name_; }
  Operation StartPut(std::string_view key, std::span<const std::byte> bytes,
                     BlockInfo info) override;
  absl::Status Drop(std::string_view key) override;
  absl::StatusOr<BlockStat> Stat(std::string_view key) const override;
  std::vector<std::string> Keys() const override;
  // The near tier's budgets, then the far tier's.
  std::vector<TierUsage> usage() const override;
  // Unimplemented for a block in the far tier.
  absl::StatusOr<BlockView> Map(std::string_view key) override;
  // Unimplemented if the near tier has no room: use Put.
  absl::StatusOr<BlockView> MapNew(std::string_view key, int64_t bytes,
                                   BlockInfo info) override;
  bool IsLossless(Purpose purpose, DType dtype) const override;

  // Moves blocks to the far tier, the largest first, until at least `bytes` are
  // moved or no movable block is left. Returns the bytes moved, or the error of
  // the first block that could not be moved, which stays in the near tier.
  absl::StatusOr<int64_t> Spill(int64_t bytes);

  // Spills the bytes that the policy selects for the reading. As long as the
  // pressure is at the threshold or above it, new blocks go to the far tier.
  absl::StatusOr<int64_t> Relieve(const PressurePolicy& policy,
                                  const MemoryReading& reading);

 protected:
  Operation StartRead(std::string_view key, std::optional<int64_t> offset,
                      std::span<std::byte> out) override;

 private:
  struct Movable {
    std::string key;
    int64_t bytes = 0;
  };

  // Adds the view to those that keep the block in the near tier.
  BlockView Hold(std::string_view key, BlockView view)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Movable> MovableBlocks() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int64_t> SpillLocked(int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Replace(std::string_view key, std::span<const std::byte> bytes,
                       BlockInfo info);
  Operation PutFar(std::string_view key, std::span<const std::byte> bytes,
                   BlockInfo info, const absl::Status& near) const;

  const std::shared_ptr<MemoryTier> near_;
  const std::shared_ptr<MemoryTier> far_;
  const std::string name_;
  // Held exclusively while a block leaves a tier, so that a shared holder finds
  // each block in one of them. If a block is in both, the near one is newer.
  mutable absl::Mutex mutex_;
  std::map<std::string, std::weak_ptr<const void>, std::less<>> views_
      ABSL_GUARDED_BY(mutex_);
  bool is_short_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_SPILL_TIER_H_
