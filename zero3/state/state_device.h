// StateDevice: the device of a rank's model state: the queue that computes, the
// memory, the budget of this memory, and the operations on it.
//
// StateOps: the operations on bytes of model state: zero, copy, sums of
// gradients, their norm, the optimizer step, and int8 messages. They are
// enqueued; the rest of ShardedState never accesses memory itself.
//
//   options.ops = DryStateOps();      // A dry run: no byte is touched.
//
//   HostStateOps(queue)   computes on the CPU: in the calling thread if the
//                         queue is immediate, otherwise by Queue::Launch
//   CudaStateOps(queue)   computes on a GPU, or emulated (cuda_state_ops.h)
//   DryStateOps()         does nothing, for memory that is only counted
//
// Arguments of a call are equal or do not overlap. One thread at a time, that
// of the queue.
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/sgd.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"
#include "offload/tier/accounting.h"
#include "topology/rank.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

class StateOps {
 public:
  virtual ~StateOps() = default;

  // False if memory has no contents: then initial values are not computed.
  virtual bool has_values() const = 0;

  virtual absl::Status Zero(std::span<std::byte> bytes) = 0;
  // Copies all of `from` to the beginning of `to`, which is as long or longer.
  virtual absl::Status Copy(std::span<const std::byte> from,
                            std::span<std::byte> to) = 0;
  // to += from, for `count` elements of a floating-point type.
  virtual absl::Status Add(DType dtype, const std::byte* from, std::byte* to,
                           int64_t count) = 0;

  // The functions of zero3/state/int8_blocks.h.
  virtual absl::Status EncodeInt8(DType dtype,
                                  std::span<const std::byte> values,
                                  std::span<std::byte> encoded) = 0;
  virtual absl::Status DecodeInt8(std::span<const std::byte> encoded,
                                  DType dtype, std::span<std::byte> values) = 0;
  virtual absl::Status SumInt8(
      std::span<const std::span<const std::byte>> sources, float divisor,
      DType dtype, std::span<std::byte> values) = 0;
  virtual absl::Status SumInt8Encoded(
      std::span<const std::span<const std::byte>> sources, int64_t elements,
      std::span<std::byte> encoded) = 0;

  // Writes the statistics of `gradient` to the device memory `result`, which
  // has the size and alignment of a GradientStatistics.
  virtual absl::Status Measure(const offload::ConstTypedSpan& gradient,
                               std::span<std::byte> result) = 0;

  // The optimizer step on `range`, with the options that the optimizer has now.
  // The optimizer and the range's name outlive the work. Errors are the
  // optimizer's.
  virtual absl::Status Step(offload::AdamW& optimizer, int64_t step,
                            const offload::StepScale& scale,
                            const offload::ParameterRange& range) = 0;
  virtual absl::Status Step(offload::Sgd& optimizer, int64_t step,
                            const offload::StepScale& scale,
                            const offload::ParameterRange& range) = 0;
};

// The computations of StateOps, which a device implements: methods have the
// meaning of StateOps's at addresses that they may access. Arguments are valid,
// ranges are not frozen. Calls come one after the other, in the order of the
// queue; on which thread depends on the device.
class StateKernels {
 public:
  using Sources = std::span<const std::span<const std::byte>>;

  virtual ~StateKernels() = default;

  // True if calls enqueue work on Queue::native_handle() instead of doing it.
  virtual bool enqueues() const { return false; }

  virtual absl::Status Add(DType dtype, const std::byte* from, std::byte* to,
                           int64_t count) = 0;
  virtual absl::Status EncodeInt8(DType dtype,
                                  std::span<const std::byte> values,
                                  std::span<std::byte> encoded) = 0;
  virtual absl::Status SumInt8(Sources sources, float divisor, DType dtype,
                               std::span<std::byte> values) = 0;
  virtual absl::Status SumInt8Encoded(Sources sources, int64_t elements,
                                      std::span<std::byte> encoded) = 0;
  virtual absl::Status Measure(const offload::ConstTypedSpan& gradient,
                               std::span<std::byte> result) = 0;
  // `prepared` is what the optimizer's Prepare returned.
  virtual absl::Status Step(offload::AdamW& optimizer,
                            const offload::RangesStep& prepared,
                            const offload::ParameterRange& range) = 0;
  virtual absl::Status Step(offload::Sgd& optimizer,
                            const offload::RangesStep& prepared,
                            const offload::ParameterRange& range) = 0;
};

// Enqueues the kernels with the memory that they access. `queue` outlives the
// operations.
std::shared_ptr<StateOps> StateOpsOf(Queue& queue,
                                     std::shared_ptr<StateKernels> kernels);

// `queue` outlives the operations. Unimplemented is returned by calls if the
// host cannot do the work of its device.
std::shared_ptr<StateOps> HostStateOps(Queue& queue = HostQueue());
std::shared_ptr<StateOps> DryStateOps();

// A point in the work of a StateDevice's queue. The event of a later one
// happens after the events of all earlier ones.
struct QueuePoint {
  int64_t number = 0;  // 0: before all work.
  Event event = {};
};
inline const QueuePoint& Later(const QueuePoint& a, const QueuePoint& b) {
  return a.number < b.number ? b : a;
}

struct StateDevice {
  // The memory and the host's operations of the device of `on`, which outlives
  // this, with the budget `counted_by`; null: unlimited.
  StateDevice(std::shared_ptr<offload::Accounting> counted_by = nullptr,
              Queue& on = HostQueue())
      : accounting(std::move(counted_by)),
        queue(&on),
        memory(on.device().memory()),
        ops(HostStateOps(on)) {}

  // The work that is enqueued now. On an immediate queue nothing is.
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
// a device does. Work of other queues is waited for before.
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

  // The last use by whoever had the block before (BufferPool). Work on the
  // device's own queue comes after it; work on another queue waits for it.
  const QueuePoint& last_use() const { return last_use_; }

 private:
  friend class BufferPool;

  void AwaitWork();

  // Destroyed after the memory, so that no byte is uncounted.
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
// allocates more. On other queues, where freeing would wait for work that is
// enqueued, it keeps unused blocks until the memory or the budget is short. Not
// thread-safe.
//
// kDoubleBuffered is for blocks that other queues fill and empty while the
// device's queue computes: a block that was given back in the current step is
// reused only after as many others of its size as were ever in use at once, if
// there is memory for them; after the first step only what cannot wait is
// allocated. Reused blocks are those given back first.
class BufferPool {
 public:
  enum class Reuse { kAtOnce, kDoubleBuffered };

  // Blocks count against `device` as buffers. They are private memory of the
  // rank: shared memory would map the blocks of other ranks that it reads into
  // this process, up to (n - 1) / n of their bytes.
  explicit BufferPool(const StateDevice& device, Reuse reuse = Reuse::kAtOnce)
      : device_(device), reuse_(reuse) {}

  // Uninitialised. ResourceExhausted if the budget has too little room.
  absl::StatusOr<AccountedMemory> Take(std::string_view key, int64_t bytes);
  // Returns a block of Take. Ignores an empty one. The device's queue has
  // waited for all other queues that used it; its work so far is the last use.
  void Give(AccountedMemory block);
  // The same if another queue, which has waited for the device's queue, uses
  // the block until `last_use`: the next user waits for it.
  void Give(AccountedMemory block, Event last_use);
  // Blocks given back so far are reused before others are allocated.
  void BeginStep();
  // Frees all unused blocks, on an immediate queue.
  void Trim();

 private:
  // Blocks of one size.
  struct SizeClass {
    std::deque<AccountedMemory> free;  // In the order of giving back.
    int64_t ready = 0;  // The first of them that earlier steps gave back.
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
  int64_t steps_ = 0;                    // Begun so far.
  int64_t free_bytes_ = 0;
  int64_t used_bytes_ = 0;
  int64_t most_used_bytes_ = 0;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_STATE_DEVICE_H_
