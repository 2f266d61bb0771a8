// A tier for dry runs that counts blocks without storing them.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_COUNTING_TIER_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_COUNTING_TIER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/tensor/memory.h"
#include "offload/tier/memory_tier.h"

namespace tessera::train {

class CountingTier final : public offload::MemoryTier {
 public:
  // A file tier: blocks have no memory and are not used in place.
  explicit CountingTier(std::shared_ptr<offload::Accounting> accounting)
      : CountingTier(std::move(accounting), nullptr, false) {}
  // A host tier: each block is allocated in `memory`. Blocks are used in place
  // (`in_place`) unless they are compressed.
  CountingTier(std::shared_ptr<offload::Accounting> accounting,
               std::shared_ptr<MemoryResource> memory, bool in_place)
      : accounting_(std::move(accounting)),
        memory_(std::move(memory)),
        in_place_(in_place) {}

  std::string_view name() const override { return accounting_->name(); }
  offload::Operation StartPut(std::string_view key,
                              std::span<const std::byte> bytes,
                              offload::BlockInfo info) override;
  absl::Status Drop(std::string_view key) override;
  absl::StatusOr<offload::BlockStat> Stat(std::string_view key) const override;
  std::vector<std::string> Keys() const override;
  std::vector<offload::TierUsage> usage() const override {
    return {{std::string(name()), accounting_->usage()}};
  }
  absl::StatusOr<offload::BlockView> Map(std::string_view key) override;
  absl::StatusOr<offload::BlockView> MapNew(std::string_view key, int64_t bytes,
                                            offload::BlockInfo info) override;

 protected:
  // Does not change `out`.
  offload::Operation StartRead(std::string_view key,
                               std::optional<int64_t> offset,
                               std::span<std::byte> out) override;

 private:
  struct Block {
    offload::Reservation room;
    Buffer memory;
    int64_t bytes = 0;
    offload::BlockInfo info;
  };

  absl::StatusOr<std::shared_ptr<Block>> Replace(std::string_view key,
                                                 int64_t bytes,
                                                 offload::BlockInfo info)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<offload::Accounting> accounting_;
  const std::shared_ptr<MemoryResource> memory_;
  const bool in_place_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Block>, std::less<>> blocks_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_COUNTING_TIER_H_
