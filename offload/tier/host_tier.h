// HostTier: stores blocks in memory that the CPU can access.
//
//   HostTier heap(std::make_shared<Accounting>("host", 32LL << 30));
//
//   TESSERA_ASSIGN_OR_RETURN(auto arena, PinnedArena::Create({.cap = cap}));
//   HostTier pinned(std::make_shared<Accounting>("pinned", cap), arena);
//
// Uses exactly the bytes of its blocks. A Put of the same size writes in place;
// a Put of another size briefly needs memory for both blocks, and both count.
// Every operation is a copy by the calling thread, which is done when Start
// returns.
#ifndef TESSERA_OFFLOAD_TIER_HOST_TIER_H_
#define TESSERA_OFFLOAD_TIER_HOST_TIER_H_

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/tensor/memory.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

class HostTier final : public MemoryTier {
 public:
  // `resource` allocates host memory; its errors are returned with the block's
  // name. The tier has the name of `accounting`.
  explicit HostTier(std::shared_ptr<Accounting> accounting,
                    std::shared_ptr<MemoryResource> resource = HostMemory());
  ~HostTier() override;

  std::string_view name() const override { return accounting_->name(); }
  Operation StartPut(std::string_view key, std::span<const std::byte> bytes,
                     BlockInfo info) override;
  absl::Status Drop(std::string_view key) override;
  absl::StatusOr<BlockStat> Stat(std::string_view key) const override;
  std::vector<std::string> Keys() const override;
  std::vector<TierUsage> usage() const override;
  absl::StatusOr<BlockView> Map(std::string_view key) override;
  absl::StatusOr<BlockView> MapNew(std::string_view key, int64_t bytes,
                                   BlockInfo info) override;

 protected:
  Operation StartRead(std::string_view key, std::optional<int64_t> offset,
                      std::span<std::byte> out) override;

 private:
  struct Block;

  std::shared_ptr<Block> Find(std::string_view key) const;
  bool Overwrite(std::string_view key, std::span<const std::byte> bytes,
                 BlockInfo info);
  absl::StatusOr<std::shared_ptr<Block>> NewBlock(std::string_view key,
                                                  size_t bytes, BlockInfo info);
  void Publish(std::string_view key, std::shared_ptr<Block> block);

  const std::shared_ptr<Accounting> accounting_;
  const std::shared_ptr<MemoryResource> resource_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Block>, std::less<>> blocks_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_HOST_TIER_H_
