// LayeredTier: a small near tier in front of a large far one.
//
//   auto host = std::make_shared<HostTier>(host_budget);
//   TESSERA_ASSIGN_OR_RETURN(
//       auto tier, LayeredTier::Create(host, disk, {.victims = policy}));
//   Operation near = tier->StartPrefetch("layer.5");   // disk to host
//
// Put goes to the front; where that is full, victims move to the back first,
// and where nothing may leave, or the block exceeds the front's whole budget,
// it goes to the back. Get reads where the block is and moves nothing; Prefetch
// moves it to the front. A block that leaves is written to the back only where
// it changed since. A Put that both tiers refuse changes no block, but victims
// may have moved.
//
// After a crash the back holds what was written to it: Flush first for more.
#ifndef TESSERA_OFFLOAD_TIER_LAYERED_TIER_H_
#define TESSERA_OFFLOAD_TIER_LAYERED_TIER_H_

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "offload/tier/memory_tier.h"
#include "offload/tier/victim_policy.h"
#include "offload/tier/worker_pool.h"

namespace tessera::offload {

class LayeredTier final : public MemoryTier {
 public:
  struct Options {
    VictimPolicy victims = LeastRecentlyUsed();
    int threads = 2;  // moves at once
  };

  // Both belong to the new tier from now on. `front` is empty and can Map
  // (InvalidArgument); what `back` holds is found.
  static absl::StatusOr<std::unique_ptr<LayeredTier>> Create(
      std::shared_ptr<MemoryTier> front, std::shared_ptr<MemoryTier> back,
      Options options);

  std::string_view name() const override { return name_; }
  Operation StartPut(std::string_view key, std::span<const std::byte> bytes,
                     BlockInfo info) override;
  // OK, with the block where it was, where nothing may leave for it.
  Operation StartPrefetch(std::string_view key) override;
  absl::Status Drop(std::string_view key) override;
  absl::StatusOr<BlockStat> Stat(std::string_view key) const override;
  std::vector<std::string> Keys() const override;
  std::vector<TierUsage> usage() const override;
  // Brings the block to the front, where it stays while the view lives.
  // ResourceExhausted where there is no room.
  absl::StatusOr<BlockView> Map(std::string_view key) override;
  bool IsLossless(Purpose purpose, DType dtype) const override {
    return front_->IsLossless(purpose, dtype) &&
           back_->IsLossless(purpose, dtype);
  }
  absl::Status Flush() override;

  bool InFront(std::string_view key) const;

 protected:
  Operation StartRead(std::string_view key, std::optional<int64_t> offset,
                      std::span<std::byte> out) override;

 private:
  enum class Back { kNone, kStale, kCurrent };
  struct Entry {
    int64_t bytes = 0;
    BlockInfo info;
    bool in_front = false;
    Back back = Back::kNone;
    uint64_t last_use = 0;
    std::shared_ptr<int> views;  // how many there are; under mutex_
    bool busy = false;           // one operation at a time
  };
  class Claim;

  LayeredTier(std::shared_ptr<MemoryTier> front,
              std::shared_ptr<MemoryTier> back, Options options);

  absl::Status PutNow(const std::string& key, std::span<const std::byte> bytes,
                      BlockInfo info);
  absl::StatusOr<bool> PutInFront(const std::string& key,
                                  std::span<const std::byte> bytes,
                                  BlockInfo info);
  absl::Status ReadNow(Claim& claim, const std::string& key,
                       std::optional<int64_t> offset, std::span<std::byte> out);
  // False where nothing may leave for it.
  absl::StatusOr<bool> BringForward(const std::string& key, Entry& entry);
  absl::StatusOr<bool> EvictOne(std::string_view incoming);
  std::optional<std::string> PickVictim(std::string_view incoming)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteBack(const std::string& key, Entry& entry);

  const std::shared_ptr<MemoryTier> front_;
  const std::shared_ptr<MemoryTier> back_;
  const Options options_;
  const std::string name_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  WorkerPool workers_;  // the first to go
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_LAYERED_TIER_H_
