// The device of a rank's model state (StateDevice) and its memory:
// AccountedMemory counts against a budget, and BufferPool reuses blocks.
#ifndef TESSERA_ZERO3_STATE_STATE_DEVICE_H_
#define TESSERA_ZERO3_STATE_STATE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/tensor/memory.h"
#include "offload/tier/accounting.h"
#include "topology/rank.h"
#include "zero3/layout/state_layout.h"
#include "zero3/state/state_operations.h"

namespace tessera::zero3 {

// A point in the work of a StateDevice's queue. The event of a later point
// happens after the events of all earlier points.
struct QueuePoint {
  int64_t number = 0;  // 0: before all work.
  Event event = {};
};
inline const QueuePoint& Later(const QueuePoint& a, const QueuePoint& b) {
  return a.number < b.number ? b : a;
}

struct StateDevice {
  // Uses the memory of the device of `on`, with HostStateOps and the budget
  // `counted_by` (null: unlimited). `on` must outlive this.
  StateDevice(std::shared_ptr<offload::Accounting> counted_by = nullptr,
              Queue& on = HostQueue())
      : accounting(std::move(counted_by)),
        queue(&on),
        memory(on.device().memory()),
        ops(HostStateOps(on)) {}

  // The end of the work that is enqueued so far; 0 on an immediate queue, whose
  // work is done.
  absl::StatusOr<QueuePoint> Mark() const;

  std::shared_ptr<offload::Accounting> accounting;
  Queue* queue;  // The rank's computations are enqueued here.
  std::shared_ptr<MemoryResource> memory;
  std::shared_ptr<StateOps> ops;

 private:
  std::shared_ptr<int64_t> marks_ = std::make_shared<int64_t>(0);
};

// A rank's position in a layout, and the device of its state.
struct StateContext {
  StateLayout layout;
  topology::Rank rank;
  StateDevice device;

  const ModelParameters& model() const { return layout.model(); }
  Extent OwnExtent(ParameterId id) const { return layout.ExtentOf(rank, id); }
  Queue& queue() const { return *device.queue; }
};

// Memory of this rank that counts against a budget until it is destroyed.
// Move-only; empty by default.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       AccountedMemory shard,
//       AccountedMemory::Allocate(device, "layer.0", bytes,
//                                 offload::Purpose::kParameters));
//
// The destructor waits for the work of the device's queue, as freeing memory of
// a device does. The work of other queues must be awaited before.
class AccountedMemory {
 public:
  AccountedMemory() = default;
  ~AccountedMemory() { AwaitWork(); }
  AccountedMemory(AccountedMemory&&) = default;
  AccountedMemory& operator=(AccountedMemory&& other);

  // Uninitialised bytes, aligned to 64. ResourceExhausted if the budget or the
  // memory of `device` has too little room.
  static absl::StatusOr<AccountedMemory> Allocate(const StateDevice& device,
                                                  std::string_view key,
                                                  int64_t bytes,
                                                  offload::Purpose purpose);

  std::span<std::byte> bytes() const {
    return {const_cast<std::byte*>(memory_.data()), memory_.size()};
  }

  // The last use by the previous user of the block (BufferPool). Work on the
  // device's own queue comes after it; work on another queue must wait for it.
  const QueuePoint& last_use() const { return last_use_; }

 private:
  friend class BufferPool;

  void AwaitWork();

  // Destroyed after the memory, so that all bytes are counted until they are
  // freed.
  offload::Reservation reservation_;
  Buffer memory_;
  Queue* queue_ = nullptr;
  QueuePoint last_use_;
};

// Reusable blocks of memory for gathered parameters and whole gradients.
//
//   BufferPool pool(device);
//   TESSERA_ASSIGN_OR_RETURN(AccountedMemory block, pool.Take("w", bytes));
//   ...
//   pool.Give(std::move(block));
//   pool.Trim();                      // Frees unused blocks.
//
// A returned block is reused for the next request of its size. On an immediate
// queue the pool never holds more bytes, used and free together, than the
// maximum in use since the last Trim: it frees unused blocks before it
// allocates more. On other queues, where freeing would wait for enqueued work,
// it keeps unused blocks until the memory or the budget is exhausted. Not
// thread-safe.
//
// kDoubleBuffered is for blocks that other queues fill and empty while the
// device's queue computes: a block that was returned in the current step is
// reused only after as many other blocks of its size as were ever in use at
// once, if there is memory for them. After the first step the pool allocates
// only if no block can be reused. Blocks are reused in the order of their
// return.
class BufferPool {
 public:
  enum class Reuse { kAtOnce, kDoubleBuffered };

  // Blocks count against the budget of `device` as buffers. They are private
  // memory of the rank: with shared memory, the blocks of other ranks that this
  // process reads would be mapped into it, up to (n - 1) / n of their bytes.
  explicit BufferPool(const StateDevice& device, Reuse reuse = Reuse::kAtOnce)
      : device_(device), reuse_(reuse) {}

  const StateDevice& device() const { return device_; }
  // Uninitialised. ResourceExhausted if the budget has too little room.
  absl::StatusOr<AccountedMemory> Take(std::string_view key, int64_t bytes);
  // Returns a block of Take; an empty block is ignored. Precondition: the
  // device's queue has waited for all other queues that used the block. The
  // queue's work so far is the last use.
  void Give(AccountedMemory block);
  // The same for a block that another queue, which has waited for the device's
  // queue, uses until `last_use`. The next user waits for that event.
  void Give(AccountedMemory block, Event last_use);
  // Makes the blocks returned so far available before others are allocated.
  void BeginStep();
  // Frees all unused blocks, on an immediate queue.
  void Trim();

 private:
  // Blocks of one size.
  struct SizeClass {
    std::deque<AccountedMemory> free;  // In the order of return.
    int64_t ready = 0;  // The number that earlier steps returned.
    int64_t used = 0;
    int64_t most_used = 0;
  };

  absl::StatusOr<AccountedMemory> Allocate(std::string_view key, int64_t bytes);
  absl::StatusOr<AccountedMemory> AllocateNow(std::string_view key,
                                              int64_t bytes);
  AccountedMemory TakeFree(SizeClass& blocks, bool oldest);
  void GiveWith(AccountedMemory block, absl::StatusOr<QueuePoint> last_use);
  void DropFree(int64_t bytes);
  void DropAll();

  const StateDevice device_;
  const Reuse reuse_;
  std::map<int64_t, SizeClass> blocks_;  // By size.
  int64_t steps_ = 0;                    // Started so far.
  int64_t free_bytes_ = 0;
  int64_t used_bytes_ = 0;
  int64_t most_used_bytes_ = 0;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_STATE_DEVICE_H_
