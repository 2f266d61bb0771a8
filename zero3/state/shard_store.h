// A rank's shards of model state, in memory or in tiers: ShardStore holds the
// shards of one kind, and ShardPrefetch reads them from tiers before they are
// used.
#ifndef TESSERA_ZERO3_STATE_SHARD_STORE_H_
#define TESSERA_ZERO3_STATE_SHARD_STORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "offload/prefetch/prefetcher.h"
#include "offload/tier/memory_tier.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {

// The traffic of a step with tiers. Blocks that are used in place do not count.
struct ShardTraffic {
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t stall_ns = 0;  // Time spent waiting for blocks.
  // A lower bound on the stall, over all orders of reads, with this near memory
  // and the highest bandwidth measured (offload/prefetch/load_bound.h).
  int64_t least_stall_ns = 0;
  int64_t near_bytes = 0;  // The maximum of near memory.

  // Adds all fields, except for near_bytes, which becomes the larger one.
  void Add(const ShardTraffic& other) {
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    stall_ns += other.stall_ns;
    least_stall_ns += other.least_stall_ns;
    near_bytes = std::max(near_bytes, other.near_bytes);
  }
  friend bool operator==(const ShardTraffic&, const ShardTraffic&) = default;
};

// The offloaded bytes of one slot: its value, and all blocks that the optimizer
// opens at once (value, gradient, master weight, moments).
struct OffloadedBytes {
  int64_t value = 0;
  int64_t update = 0;
};

// The near memory for tiers without in-place access: room for the optimizer to
// step one parameter while the next is read and the previous one is written,
// and for the shards that gathers read ahead. The largest sum of `updates`
// consecutive slots, or of `values` consecutive values; both are at least 1.
inline int64_t NearBytes(std::span<const OffloadedBytes> by_slot,
                         int64_t updates, int64_t values) {
  int64_t most = 0, update_sum = 0, value_sum = 0;
  for (size_t i = 0; i < by_slot.size(); ++i) {
    update_sum += by_slot[i].update;
    value_sum += by_slot[i].value;
    const auto leaves = [i](int64_t length) {
      return i - static_cast<size_t>(length);
    };
    if (i >= static_cast<size_t>(updates)) {
      update_sum -= by_slot[leaves(updates)].update;
    }
    if (i >= static_cast<size_t>(values)) {
      value_sum -= by_slot[leaves(values)].value;
    }
    most = std::max({most, update_sum, value_sum});
  }
  return most;
}

// The host's memory and operations, for state of `device` that the host keeps.
// In a dry run neither is real.
StateDevice HostOf(const StateDevice& device);

// Reads the shards of a state from tiers before they are used. It has one
// offload::Prefetcher per tier without in-place access. All stores of the state
// share it, so that it sees the uses of a whole step in order.
//
//   auto prefetch = std::make_shared<ShardPrefetch>(ShardPrefetch::Options{
//       .near_bytes = 64 << 20, .device = device});
//   TESSERA_RETURN_IF_ERROR(prefetch->BeginStep());   // gathers, optimizer ...
//   TESSERA_ASSIGN_OR_RETURN(ShardTraffic traffic, prefetch->EndStep());
//
// In the first step and outside of steps it reads the blocks that stores
// announce; in later steps it follows the order of the previous step. One
// thread at a time.
class ShardPrefetch {
 public:
  struct Options {
    // Near memory for each tier. It grows if the blocks in use at once need
    // more.
    int64_t near_bytes = 1;
    bool reads_ahead = true;
    // Allocates the near memory, with the purpose kBuffers.
    StateDevice device;
  };

  explicit ShardPrefetch(const Options& options);
  ~ShardPrefetch();

  // Memory of the device for open blocks.
  BufferPool& blocks() { return blocks_; }
  // The queues of copies between near memory and the memory of a device that is
  // not immediate.
  struct CopyQueues {
    std::unique_ptr<Queue> up;
    std::unique_ptr<Queue> down;
  };
  absl::StatusOr<CopyQueues*> Copies();
  // Waits for the work of the device's queue and of the copies.
  void AwaitWork();
  // The prefetcher of `tier`, which must outlive this. ResourceExhausted if the
  // device has too little room for its near memory.
  absl::StatusOr<offload::Prefetcher*> For(offload::MemoryTier& tier);

  // Does nothing during a step.
  absl::Status BeginStep();
  // FailedPrecondition while a block is open. Zeros outside of a step.
  absl::StatusOr<ShardTraffic> EndStep();

 private:
  const Options options_;
  BufferPool blocks_;
  CopyQueues copies_;  // Null until they are used.
  bool in_step_ = false;
  std::map<offload::MemoryTier*, std::unique_ptr<offload::Prefetcher>>
      prefetchers_;
};

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
  // The prefetcher of the state. Null: a separate one for this store, with room
  // for three of its largest blocks.
  std::shared_ptr<ShardPrefetch> prefetch = {};
  // Record the last write of each shard, for queues other than the device's.
  bool marks_writes = false;
  // Settle does not wait, even on an immediate queue.
  bool writes_late = false;
};

enum class ShardAccess {
  kUpdate,
  kOverwrite,  // The old contents are not needed, and not read.
  kElsewhere,  // Read by another queue, after ReadyAfter.
};

// This rank's shards of one kind of state (parameters, gradients, master
// weights, a moment), in memory or in a tier.
//
//   store->Announce(4);                              // Reads it ahead.
//   TESSERA_ASSIGN_OR_RETURN(auto bytes, store->Open(3));
//   ... read and write ...
//   TESSERA_RETURN_IF_ERROR(store->Close(3, /*changed=*/true));
//   TESSERA_RETURN_IF_ERROR(store->Settle());        // Flushes writes.
//
// Without a tier a shard is in memory. In a tier with in-place access
// (MemoryTier::Map) it is used in place. From any other tier ShardPrefetch
// reads it into near memory, ahead of its use if the order is known or
// announced, and writes it back asynchronously. If a write fails, the shard
// stays in near memory and the next Settle retries, so no data is lost. A
// changed shard of a lossy tier is written at once and read again, so that
// results do not depend on how long a shard stays in near memory.
//
// On a device that is not immediate, near memory is staging memory of the host,
// for tiers with in-place access too. Open enqueues an upload to memory of the
// device, Close a download, and the write to the tier starts after the
// download. The host waits only if a block is not in near memory yet or is
// being written. Copies have one queue per direction: the upload of a block
// overlaps the work on the previous blocks, and its download the work on the
// next ones. Between uses by the device, the host may use near memory directly
// (OpenOnHost), and another queue may write a shard that is in memory of the
// device (SetArrival).
//
// One thread at a time.
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
  // True unless the block is read into near memory before it is used.
  bool IsInPlace(size_t index) const {
    return shards_[index].prefetcher == nullptr;
  }

  // Announces that block `index` will be opened soon.
  void Announce(size_t index);

  // The bytes of block `index`, valid until Close, for the device's queue.
  // Returns the tier's errors, including those of an earlier write whose near
  // memory is needed. Preconditions here and below: index < size(), and Open
  // precedes Close.
  absl::StatusOr<std::span<std::byte>> Open(
      size_t index, ShardAccess access = ShardAccess::kUpdate);
  // Precondition: the caller's changes are enqueued.
  absl::Status Close(size_t index, bool changed);

  // With marks_writes: the event after which another queue may read the open
  // block. It comes after the last change and after `other`.
  absl::StatusOr<Event> ReadyAfter(size_t index, const QueuePoint& other);
  // Declares that another queue, which has waited for the device's queue,
  // writes the block until `arrived`. The block's next use waits for that.
  // Precondition: the block is closed and not in a tier.
  void SetArrival(size_t index, Event arrived) {
    shards_[index].arrival = std::move(arrived);
  }

  // Open and Close for use by the host, of a block that is in a tier and not
  // open. The host waits for copies of the block that are in flight.
  absl::StatusOr<std::span<std::byte>> OpenOnHost(
      size_t index, ShardAccess access = ShardAccess::kUpdate);
  absl::Status CloseOnHost(size_t index, bool changed);

  // Discards the contents of the closed block, without writing them. Its bytes
  // are undefined until it is opened with kOverwrite.
  absl::Status Discard(size_t index);

  // Flushes all changes to the tiers. On a device that is not immediate, or
  // with writes_late, it does not wait and returns the error of an earlier
  // write.
  absl::Status Settle();

  // Sets the shards in memory, but not those in tiers, to zeros.
  absl::Status SetToZeros();

 private:
  struct Shard {
    ShardBlock block;
    std::span<std::byte> bytes = {};  // Valid in memory, or while open.
    // The shard's memory if it has no tier, or its memory of the device while
    // it is open.
    AccountedMemory memory = {};
    std::span<std::byte> near = {};  // Behind memory of the device, while open.
    Event near_read = {};            // The last upload from near memory,
    Event near_written = {};         // and the last download to it.
    int64_t opens = 0;               // Open uses of the memory of the device.
    bool is_changed = false;
    QueuePoint last_write = {};
    Event arrival = {};  // The end of a write by another queue.
    // In a tier with in-place access, while it is open.
    offload::BlockView view = {};
    // In a tier without in-place access.
    offload::Prefetcher* prefetcher = nullptr;
    bool is_rounded = false;  // The tier is lossy.
  };

  ShardStore(std::vector<ShardBlock> blocks, const ShardStoreOptions& options);

  absl::Status AllocateAll();
  absl::Status AllocateHere(Shard& shard);
  absl::Status MarkWrite(Shard& shard);
  absl::Status AwaitArrival(Shard& shard);
  absl::Status PutZeros(Shard& shard);
  absl::Status PutZeroBuffer(Shard& shard);
  absl::Status MapBlock(Shard& shard);
  bool on_device() const { return !options_.device.queue->is_immediate(); }
  absl::StatusOr<std::span<std::byte>> OpenNear(Shard& shard,
                                                ShardAccess access);
  absl::Status CloseNear(Shard& shard, bool changed, Event last_use);
  absl::Status OpenOnDevice(Shard& shard, ShardAccess access);
  absl::Status CloseOnDevice(Shard& shard);
  // Enqueue copies between near memory and memory of the device.
  absl::Status Upload(Shard& shard);
  absl::Status Download(Shard& shard);

  ShardStoreOptions options_;
  std::vector<Shard> shards_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_SHARD_STORE_H_
