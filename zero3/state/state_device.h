// StateDevice: the device of a rank's model state: its memory, the budget of
// this memory, and the operations on it.
//
// StateOps: the operations on bytes of model state: zero, copy, sums of
// gradients, their norm, the optimizer step, and int8 messages. The rest of
// ShardedState never accesses memory itself.
//
//   options.ops = DryStateOps();      // A dry run: no byte is touched.
//
//   HostStateOps()   computes on the CPU, in the calling thread
//   DryStateOps()    does nothing, for memory that is only counted
//
// Arguments of a call are equal or do not overlap. Implementations are
// thread-safe.
#ifndef TESSERA_ZERO3_STATE_STATE_DEVICE_H_
#define TESSERA_ZERO3_STATE_STATE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/sgd.h"
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

  virtual void Zero(std::span<std::byte> bytes) = 0;
  // Copies all of `from` to the beginning of `to`, which is as long or longer.
  virtual void Copy(std::span<const std::byte> from,
                    std::span<std::byte> to) = 0;
  // to += from, for `count` elements of a floating-point type.
  virtual void Add(DType dtype, const std::byte* from, std::byte* to,
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

  virtual absl::StatusOr<offload::GradientStatistics> Measure(
      const offload::ConstTypedSpan& gradient) = 0;

  // The optimizer step on `range`. Errors are the optimizer's.
  virtual absl::Status Step(offload::AdamW& optimizer, int64_t step,
                            const offload::StepScale& scale,
                            const offload::ParameterRange& range) = 0;
  virtual absl::Status Step(offload::Sgd& optimizer, int64_t step,
                            const offload::StepScale& scale,
                            const offload::ParameterRange& range) = 0;
};

std::shared_ptr<StateOps> HostStateOps();
std::shared_ptr<StateOps> DryStateOps();

struct StateDevice {
  // Host memory with the budget `counted_by`; null: unlimited.
  StateDevice(std::shared_ptr<offload::Accounting> counted_by = nullptr)
      : accounting(std::move(counted_by)) {}

  std::shared_ptr<offload::Accounting> accounting;
  std::shared_ptr<MemoryResource> memory = HostMemory();
  std::shared_ptr<StateOps> ops = HostStateOps();
};

// A rank's position in a layout, and the device of its state.
struct StateContext {
  StateLayout layout;
  topology::Rank rank;
  StateDevice device;

  const ModelParameters& model() const { return layout.model(); }
  Extent OwnExtent(ParameterId id) const { return layout.ExtentOf(rank, id); }
};

// Memory of this rank that counts against a budget until it is destroyed.
// Move-only; empty by default.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       AccountedMemory shard,
//       AccountedMemory::Allocate(device, "layer.0", bytes,
//                                 offload::Purpose::kParameters));
class AccountedMemory {
 public:
  AccountedMemory() = default;

  // Uninitialised bytes, aligned to 64. ResourceExhausted if the budget or the
  // memory of `device` has too little room.
  static absl::StatusOr<AccountedMemory> Allocate(const StateDevice& device,
                                                  std::string_view key,
                                                  int64_t bytes,
                                                  offload::Purpose purpose);

  std::span<std::byte> bytes() const {
    return {const_cast<std::byte*>(memory_.data()), memory_.size()};
  }

 private:
  // Destroyed after the memory, so that no byte is uncounted.
  offload::Reservation reservation_;
  Buffer memory_;
};

// Reusable blocks of memory for gathered parameters and whole gradients.
//
//   BufferPool pool(device);
//   TESSERA_ASSIGN_OR_RETURN(AccountedMemory block, pool.Take("w", bytes));
//   ...
//   pool.Give(std::move(block));
//   pool.Trim();                      // Frees unused blocks.
//
// A returned block is reused for the next request of its size. The pool never
// holds more bytes, used and free together, than the maximum in use since the
// last Trim: it frees unused blocks before it allocates more. Not thread-safe.
class BufferPool {
 public:
  // Blocks count against `device` as buffers. They are private memory of the
  // rank: shared memory would map the blocks of other ranks that it reads into
  // this process, up to (n - 1) / n of their bytes.
  explicit BufferPool(const StateDevice& device) : device_(device) {}

  // Uninitialised. ResourceExhausted if the budget has too little room.
  absl::StatusOr<AccountedMemory> Take(std::string_view key, int64_t bytes);
  // Returns a block of Take. Ignores an empty one.
  void Give(AccountedMemory block);
  // Frees all unused blocks.
  void Trim();

 private:
  void DropFree(int64_t bytes);

  const StateDevice device_;
  std::map<int64_t, std::vector<AccountedMemory>> free_;  // By size.
  int64_t free_bytes_ = 0;
  int64_t used_bytes_ = 0;
  int64_t most_used_bytes_ = 0;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_STATE_DEVICE_H_
