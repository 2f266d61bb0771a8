// ShardStore: this rank's shards of one kind of state (parameters, gradients,
// master weights, a moment), in memory or in a tier.
//
//   store->Announce(4);                              // Reads it ahead.
//   TESSERA_ASSIGN_OR_RETURN(auto bytes, store->Open(3));
//   ... read and write ...
//   TESSERA_RETURN_IF_ERROR(store->Close(3, /*changed=*/true));
//   TESSERA_RETURN_IF_ERROR(store->Settle());        // Flushes writes.
//
// Without a tier a shard lies in memory. In a tier with in-place access
// (MemoryTier::Map) it is used there. From any other tier ShardPrefetch reads
// it into near memory, ahead of its use if the order is known or announced, and
// writes it back asynchronously. If a write fails, the shard stays in near
// memory and the next Settle retries, so nothing is lost. A changed shard of a
// tier that rounds is written at once and read again, so that results do not
// depend on how long a shard stays near.
//
// One thread at a time.
#ifndef TESSERA_ZERO3_STATE_SHARD_STORE_H_
#define TESSERA_ZERO3_STATE_SHARD_STORE_H_

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
#include "zero3/state/accounted_memory.h"
#include "zero3/state/shard_prefetch.h"

namespace tessera::zero3 {

struct ShardBlock {
  std::string key;
  int64_t bytes = 0;
  DType dtype = DType::kU8;
  offload::MemoryTier* tier = nullptr;  // Null: in memory.
};

struct ShardStoreOptions {
  offload::Purpose purpose = offload::Purpose::kOptimizer;
  // Allocates shards without a tier, and near memory.
  StateDevice device;
  // The prefetcher of the state. Null: one for this store alone, with room for
  // three of its largest blocks.
  std::shared_ptr<ShardPrefetch> prefetch = {};
};

enum class ShardAccess {
  kUpdate,
  kOverwrite,  // The old contents are not needed, and not read.
};

class ShardStore {
 public:
  // All shards are zeros. Tiers must outlive the store.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Create(
      std::vector<ShardBlock> blocks, const ShardStoreOptions& options);

  // Removes its blocks from their tiers.
  ~ShardStore();
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  size_t size() const { return shards_.size(); }
  const ShardBlock& block(size_t index) const { return shards_[index].block; }
  // True if any block is in a tier.
  bool in_tier() const;

  // Block `index` will be opened soon.
  void Announce(size_t index);

  // The bytes of block `index`, valid until Close. Errors are the tier's,
  // including those of an earlier write whose near memory is needed.
  // Preconditions here and below: index < size(), and Open precedes Close.
  absl::StatusOr<std::span<std::byte>> Open(
      size_t index, ShardAccess access = ShardAccess::kUpdate);
  absl::Status Close(size_t index, bool changed);

  // The contents of the closed block are not needed any more and need not be
  // written. Its bytes are undefined until it is opened with kOverwrite.
  absl::Status Discard(size_t index);

  // Returns when all changes are in the tiers.
  absl::Status Settle();

  // Sets the shards in memory to zeros, and not those in tiers.
  void SetToZeros();

 private:
  struct Shard {
    ShardBlock block;
    std::span<std::byte> bytes = {};  // Valid in memory, or while open.
    AccountedMemory memory = {};      // Without a tier.
    // In a tier with in-place access, while it is open.
    offload::BlockView view = {};
    // In a tier without in-place access.
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

#endif  // TESSERA_ZERO3_STATE_SHARD_STORE_H_
