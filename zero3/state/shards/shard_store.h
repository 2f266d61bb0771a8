// ShardStore: this rank's shards of one kind of state (parameters, gradients,
// master weights, a moment), in memory or in a tier.
//
//   store->Announce(4);                              // soon
//   TESSERA_ASSIGN_OR_RETURN(auto bytes, store->Open(3));
//   ... read and write ...
//   TESSERA_RETURN_IF_ERROR(store->Close(3, /*changed=*/true));
//   TESSERA_RETURN_IF_ERROR(store->Settle());        // all is written
//
// Without a tier a shard lies in memory. In a tier that can show its blocks
// (MemoryTier::Map) it is used in place; from another ShardPrefetch brings it
// near, ahead of its use where the order is known or announced, and writes it
// back behind. Should a write fail, the shard stays near, and the next Settle
// tries again: nothing is lost. A changed shard goes to a tier that rounds it
// at once, and is read again, so that what is computed does not depend on how
// long a shard stays near.
//
// One thread at a time.
#ifndef TESSERA_ZERO3_STATE_SHARDS_SHARD_STORE_H_
#define TESSERA_ZERO3_STATE_SHARDS_SHARD_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "offload/tier/memory_tier.h"
#include "zero3/state/shards/accounted_memory.h"
#include "zero3/state/shards/shard_prefetch.h"

namespace tessera::zero3 {

struct ShardBlock {
  std::string key;
  int64_t bytes = 0;
  DType dtype = DType::kU8;
  offload::MemoryTier* tier = nullptr;  // Null: in memory.
};

struct ShardStoreOptions {
  offload::Purpose purpose = offload::Purpose::kOptimizer;
  // Of memory and buffers.
  StateDevice device;
  // That of the state. Null: one for this store alone, with room for three of
  // its largest blocks.
  std::shared_ptr<ShardPrefetch> prefetch = {};
};

enum class ShardAccess {
  kUpdate,
  kOverwrite,  // What is there does not count, and need not be read.
};

class ShardStore {
 public:
  // Zeros. Tiers and what they stand on outlive the store.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Create(
      std::vector<ShardBlock> blocks, const ShardStoreOptions& options);

  // Takes its blocks out of their tiers.
  ~ShardStore();
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  size_t size() const { return shards_.size(); }
  const ShardBlock& block(size_t index) const { return shards_[index].block; }
  // Whether any block is in a tier.
  bool in_tier() const;

  // Block `index` is wanted soon.
  void Announce(size_t index);

  // Its bytes, until Close. Errors are the tier's, of a write that failed too
  // where its room is needed. Precondition of this and the
  // rest: index < size(), and Open comes before Close.
  absl::StatusOr<std::span<std::byte>> Open(
      size_t index, ShardAccess access = ShardAccess::kUpdate);
  absl::Status Close(size_t index, bool changed);

  // What the closed block holds is not needed any more, and need not be
  // written: its bytes are undefined until it was opened with kOverwrite.
  absl::Status Discard(size_t index);

  // Returns when all that was changed is in the tier.
  absl::Status Settle();

  // Of what lies in memory. Blocks in tiers are left alone.
  void SetToZeros();

 private:
  struct Shard {
    ShardBlock block;
    std::span<std::byte> bytes = {};  // Where it can be reached.
    AccountedMemory memory = {};      // Without a tier.
    // In a tier that shows the block, while it is open:
    offload::BlockView view = {};
    // In a tier that does not:
    offload::Prefetcher* prefetcher = nullptr;
    bool is_rounded = false;  // By the tier.
  };

  ShardStore(std::vector<ShardBlock> blocks, const ShardStoreOptions& options);

  absl::Status AllocateAll();
  absl::Status AllocateHere(Shard& shard);
  absl::Status PutZeros(Shard& shard);
  absl::Status PutZeroBuffer(Shard& shard);
  absl::Status MapBlock(Shard& shard);

  ShardStoreOptions options_;
  std::vector<Shard> shards_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARDS_SHARD_STORE_H_
