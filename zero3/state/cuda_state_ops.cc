#include "zero3/state/cuda_state_ops.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda/stream.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "offload/optimizer/cuda_kernels.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/optimizer/parameter_range.h"
#include "zero3/state/state_kernels.h"
#include "zero3/state/state_operations.h"

namespace tessera::zero3::TESSERA_KERNELS {
namespace {

using offload::GradientStatistics;
using offload::RunStatistics;
using tessera::TESSERA_KERNELS::kIsEmulated;

// Kernels write RunStatistics where a GradientStatistics is read.
static_assert(sizeof(RunStatistics) == sizeof(GradientStatistics) &&
              offsetof(RunStatistics, sum_of_squares) ==
                  offsetof(GradientStatistics, sum_of_squares) &&
              offsetof(RunStatistics, non_finite) ==
                  offsetof(GradientStatistics, non_finite));

// Memory that the kernels of a queue use one after the other: memory of the
// device, or of the host if the kernels are emulated.
class Scratch {
 public:
  explicit Scratch(Queue& queue) : queue_(queue) {}

  // The bytes are valid until the last kernel is done: outgrown memory is kept,
  // because enqueued kernels may use it.
  absl::StatusOr<std::byte*> Take(size_t size) {
    if (buffers_.empty() || buffers_.back().size() < size) {
      const size_t least =
          buffers_.empty() ? size_t{4096} : 2 * buffers_.back().size();
      TESSERA_ASSIGN_OR_RETURN(
          Buffer larger,
          Buffer::Allocate(
              kIsEmulated ? HostMemory() : queue_.device().memory(),
              std::max(size, least)));
      buffers_.push_back(std::move(larger));
    }
    return buffers_.back().data();
  }

 private:
  Queue& queue_;
  std::vector<Buffer> buffers_;
};

absl::StatusOr<Int8Sources> SourcesOf(op::Sources sources) {
  if (sources.size() > kMostSources) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sum of ", sources.size(), " int8 messages; a kernel adds ",
        kMostSources, " at most: reduce over smaller groups"));
  }
  Int8Sources all = {};
  for (const auto source : sources) all.encodings[all.count++] = source.data();
  return all;
}

// The state that the kernels of one queue share.
struct CudaBackend {
  KernelStream stream;
  Scratch terms;  // Of Measure and SumSquares.
};

int64_t ElementsOf(DType dtype, size_t bytes) {
  return static_cast<int64_t>(bytes) / SizeInBytes(dtype);
}

absl::Status Run(CudaBackend& cuda, const op::Add& call) {
  LaunchAdd(cuda.stream, call.dtype, call.from, call.to, call.count);
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::EncodeInt8& call) {
  LaunchEncodeInt8(cuda.stream, call.dtype, call.values.data(),
                   ElementsOf(call.dtype, call.values.size()),
                   call.encoded.data());
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::SumInt8& call) {
  TESSERA_ASSIGN_OR_RETURN(const Int8Sources all, SourcesOf(call.sources));
  LaunchSumInt8(cuda.stream, all, call.divisor, call.dtype,
                ElementsOf(call.dtype, call.values.size()), call.values.data());
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::SumInt8Encoded& call) {
  TESSERA_ASSIGN_OR_RETURN(const Int8Sources all, SourcesOf(call.sources));
  LaunchSumInt8Encoded(cuda.stream, all, call.elements, call.encoded.data());
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::Measure& call) {
  const offload::ConstTypedSpan& gradient = call.gradient;
  const auto terms =
      static_cast<size_t>(offload::TESSERA_KERNELS::TermsOf(gradient.size()));
  TESSERA_ASSIGN_OR_RETURN(std::byte* const scratch,
                           cuda.terms.Take(terms * sizeof(RunStatistics)));
  offload::TESSERA_KERNELS::LaunchStatistics(
      cuda.stream, gradient.dtype(), gradient.data(), gradient.size(),
      reinterpret_cast<RunStatistics*>(scratch),
      reinterpret_cast<RunStatistics*>(call.result.data()));
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::OptimizerStep& call) {
  offload::TESSERA_KERNELS::LaunchStep(
      cuda.stream, offload::JobOf(call.prepared, call.range, 0,
                                  call.range.parameter.size()));
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::DecodeNf4& call) {
  LaunchDecodeNf4(
      cuda.stream, call.codec->name() == "nf4_double", call.encoded.data(),
      call.dtype,
      static_cast<int64_t>(call.values.size()) / SizeInBytes(call.dtype),
      call.values.data());
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::Scale& call) {
  LaunchScale(cuda.stream, call.values.dtype(), call.factor, call.values.data(),
              call.values.size(), call.copy.dtype(), call.copy.data());
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::SumSquares& call) {
  const MatrixElements elements = ElementsOf(call);
  const int64_t numbers = call.columns.empty() ? 0 : GroupSums(elements);
  TESSERA_ASSIGN_OR_RETURN(
      std::byte* const sums,
      cuda.terms.Take(static_cast<size_t>(numbers) * sizeof(double)));
  LaunchSumSquares(cuda.stream, elements, call.row_weight, call.rows.data(),
                   call.column_weight, call.columns.data(),
                   reinterpret_cast<double*>(sums));
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::DivideByMean& call) {
  LaunchDivideByMean(cuda.stream, call.rows.dtype(), call.rows.data(),
                     call.rows.size(), call.least, call.columns.data(),
                     call.columns.size());
  return absl::OkStatus();
}

absl::Status Run(CudaBackend& cuda, const op::FactoredUpdate& call) {
  LaunchUpdate(cuda.stream, ElementsOf(call), call.rows.data(),
               call.columns.data(), call.least, call.factor,
               call.update.data());
  return absl::OkStatus();
}

using CudaTable = KernelTable<CudaBackend, StateOperations>;

const CudaTable& Kernels() {
  static const CudaTable table = [] {
    CudaTable result;
    StateOperations::ForEach([&]<typename Op>(std::type_identity<Op>) {
      result.Add<Op>(
          [](CudaBackend& cuda, const Op& call) { return Run(cuda, call); });
    });
    return result;
  }();
  return table;
}

}  // namespace

absl::StatusOr<std::shared_ptr<StateOps>> CudaStateOps(Queue& queue) {
  const bool is_native = queue.native_handle() != nullptr;
  if (is_native == kIsEmulated) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CudaStateOps on device ", queue.device().name(), ": ",
        kIsEmulated ? "emulated kernels need a queue whose work the host does"
                    : "native kernels need the queue of a CUDA device"));
  }
  return std::make_shared<StateOps>(queue, Kernels(),
                                    std::make_shared<CudaBackend>(CudaBackend{
                                        queue.native_handle(), Scratch(queue)}),
                                    /*enqueues=*/true);
}

}  // namespace tessera::zero3::TESSERA_KERNELS
