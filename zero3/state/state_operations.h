// StateOps: the operations on bytes of model state: zero, copy, sums of
// gradients, their norm, the optimizer step, factored second moments, int8
// messages, and weights in NF4. They are enqueued; the rest of ShardedState
// never accesses memory itself.
//
//   options.ops = DryStateOps();      // A dry run: no byte is touched.
//
//   HostStateOps(queue)   computes on the CPU: in the calling thread if the
//                         queue is immediate, otherwise by Queue::Launch
//   CudaStateOps(queue)   computes on a GPU, or emulated (cuda_state_ops.h)
//   DryStateOps()         does nothing, for memory that is only counted
//
// Operations are values (base/device/operation_queue.h):
//
//   TESSERA_RETURN_IF_ERROR(ops->Run(op::Add{DType::kF32, from, to, count}));
//
// Operands of an operation are equal or do not overlap. One thread at a time,
// that of the queue.
#ifndef TESSERA_ZERO3_STATE_STATE_OPERATIONS_H_
#define TESSERA_ZERO3_STATE_STATE_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/device/operand_checker.h"
#include "base/device/operation.h"
#include "base/device/operation_queue.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "offload/codec/codec.h"
#include "offload/optimizer/elementwise_optimizer.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"
#include "zero3/state/factored_moments.h"

namespace tessera::zero3 {
namespace op {

using Sources = std::span<const std::span<const std::byte>>;

// to += from, for `count` elements of a floating-point type.
struct Add {
  static constexpr std::string_view kName = "sum of gradients";
  DType dtype = DType::kF32;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t count = 0;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(from, to); }
};

// EncodeInt8 of zero3/state/int8_blocks.h.
struct EncodeInt8 {
  static constexpr std::string_view kName = "encode int8";
  DType dtype = DType::kF32;
  std::span<const std::byte> values;
  std::span<std::byte> encoded;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(values, encoded); }
};

// SumInt8 of zero3/state/int8_blocks.h.
struct SumInt8 {
  static constexpr std::string_view kName = "sum of int8";
  Sources sources;
  float divisor = 1;
  DType dtype = DType::kF32;
  std::span<std::byte> values;
  std::vector<std::span<const std::byte>> kept = {};  // If it is enqueued.

  absl::Status Check(OperandChecker& check) const;
  void Keep() { kept.assign(sources.begin(), sources.end()); }
  void MoveTo(const DeviceAddresses& at);
};

// SumInt8Encoded of zero3/state/int8_blocks.h.
struct SumInt8Encoded {
  static constexpr std::string_view kName = "encoded sum of int8";
  Sources sources;
  int64_t elements = 0;
  std::span<std::byte> encoded;
  std::vector<std::span<const std::byte>> kept = {};  // If it is enqueued.

  absl::Status Check(OperandChecker& check) const;
  void Keep() { kept.assign(sources.begin(), sources.end()); }
  void MoveTo(const DeviceAddresses& at);
};

// Codec::Decode of NF4 weights: `values`, of type `dtype`, become those that
// `codec` ("nf4" or "nf4_double") encoded in `encoded`, all of its bytes.
struct DecodeNf4 {
  static constexpr std::string_view kName = "decode nf4";
  const offload::Codec* codec = nullptr;
  DType dtype = DType::kF32;
  std::span<const std::byte> encoded;
  std::span<std::byte> values;

  bool IsEmpty() const { return values.empty(); }
  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(encoded, values); }
};

// Writes the statistics of `gradient` to the device memory `result`, which has
// the size and alignment of a GradientStatistics.
struct Measure {
  static constexpr std::string_view kName = "gradient statistics";
  offload::ConstTypedSpan gradient;
  std::span<std::byte> result;

  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(gradient.address(), result); }
};

// The optimizer's step on one range. `prepared` is what the optimizer's Prepare
// returned. The pool, which the host computes on, and the range's name outlive
// the work. Errors are the optimizer's.
struct OptimizerStep {
  static constexpr std::string_view kName = "optimizer step";
  offload::RangesStep prepared;
  offload::ParameterRange range;
  ThreadPool* pool = nullptr;

  bool IsEmpty() const { return range.frozen; }
  absl::Status Check(OperandChecker& check) const;
  auto operands() {
    return std::tie(range.parameter.address(), range.gradient.address(),
                    range.copy.address(), range.first.values,
                    range.first.largest, range.second.values,
                    range.second.largest);
  }
};

// values *= factor, for f32 or f64. `copy`, unless it is empty, becomes the
// values, rounded to the nearest of its type.
struct Scale {
  static constexpr std::string_view kName = "scale of values";
  double factor = 1;
  offload::TypedSpan values;
  offload::TypedSpan copy = {};

  bool IsEmpty() const { return values.empty(); }
  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(values.address(), copy.address()); }
};

// The operations on factored second moments (Adafactor) take consecutive
// elements of a matrix of `width` columns in row-major order; the first one is
// in column `offset` of a first row. Moments are f64 for f64 values, otherwise
// f32. For vectors the width is 1, and there are no moments of columns.

// Adds row_weight times the sum of the squares of `scale` * values to the
// elements' rows, from the first row on, and column_weight times that to their
// columns, unless `columns` is empty. Sums in f64, in an order that depends
// only on the operands.
struct SumSquares {
  static constexpr std::string_view kName = "sums of squares";
  offload::ConstTypedSpan values;
  double scale = 1;
  int64_t offset = 0;
  int64_t width = 1;
  double row_weight = 1;
  double column_weight = 1;
  offload::TypedSpan rows;
  offload::TypedSpan columns;  // `width` elements, or empty.
  ThreadPool* pool = nullptr;  // Of the host; null: the calling thread.

  bool IsEmpty() const { return values.empty(); }
  absl::Status Check(OperandChecker& check) const;
  auto operands() {
    return std::tie(values.address(), rows.address(), columns.address());
  }
};

// columns /= max(mean(rows), least). Sums in f64.
struct DivideByMean {
  static constexpr std::string_view kName = "mean of moments";
  double least = 0;
  offload::ConstTypedSpan rows;
  offload::TypedSpan columns;

  bool IsEmpty() const { return columns.empty(); }
  absl::Status Check(OperandChecker& check) const;
  auto operands() { return std::tie(rows.address(), columns.address()); }
};

// update = factor * scale * value / sqrt(max(row * column, least^2)), with
// column 1 if `columns` is empty. Updates have the type of moments.
struct FactoredUpdate {
  static constexpr std::string_view kName = "factored update";
  offload::ConstTypedSpan values;
  double scale = 1;
  double factor = 1;
  double least = 0;
  int64_t offset = 0;
  int64_t width = 1;
  offload::ConstTypedSpan rows;
  offload::ConstTypedSpan columns;
  offload::TypedSpan update;
  ThreadPool* pool = nullptr;

  bool IsEmpty() const { return values.empty(); }
  absl::Status Check(OperandChecker& check) const;
  auto operands() {
    return std::tie(values.address(), rows.address(), columns.address(),
                    update.address());
  }
};

// The elements of SumSquares or FactoredUpdate.
template <typename Operation>
MatrixElements ElementsOf(const Operation& call) {
  return {call.values.data(), call.values.dtype(), call.values.size(),
          call.scale,         call.offset,         call.width};
}

}  // namespace op

using StateOperations =
    OperationList<op::Add, op::EncodeInt8, op::SumInt8, op::SumInt8Encoded,
                  op::DecodeNf4, op::Measure, op::OptimizerStep, op::Scale,
                  op::SumSquares, op::DivideByMean, op::FactoredUpdate>;

// computes() is false if memory has no contents: then initial values are not
// computed.
class StateOps : public OperationQueue<StateOperations> {
 public:
  using OperationQueue::OperationQueue;

  absl::Status Zero(std::span<std::byte> bytes) {
    if (!computes()) return absl::OkStatus();
    return queue().Fill(std::byte{0}, bytes);
  }
  // Copies all of `from` to the beginning of `to`, which is as long or longer.
  absl::Status Copy(std::span<const std::byte> from, std::span<std::byte> to) {
    if (!computes()) return absl::OkStatus();
    return queue().Copy(from, to.first(from.size()));
  }
  // DecodeInt8 of zero3/state/int8_blocks.h.
  absl::Status DecodeInt8(std::span<const std::byte> encoded, DType dtype,
                          std::span<std::byte> values) {
    return Run(op::SumInt8{{&encoded, 1}, 1, dtype, values});
  }
  // The optimizer's step on `range`, with the options that it has now.
  template <typename Options>
  absl::Status Step(const offload::ElementwiseOptimizer<Options>& optimizer,
                    int64_t step, const offload::StepScale& scale,
                    const offload::ParameterRange& range) {
    if (!computes()) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(offload::RangesStep prepared,
                             optimizer.Prepare(step, scale));
    return Run(op::OptimizerStep{prepared, range, &optimizer.pool()});
  }
};

// `queue` outlives the operations. Unimplemented is returned by calls if the
// host cannot do the work of its device.
std::shared_ptr<StateOps> HostStateOps(Queue& queue = HostQueue());
std::shared_ptr<StateOps> DryStateOps();

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_STATE_OPERATIONS_H_
