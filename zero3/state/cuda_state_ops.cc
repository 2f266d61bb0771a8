#include "zero3/state/cuda_state_ops.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
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
#include "offload/optimizer/step_runner.h"
#include "zero3/state/state_kernels.h"

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

// Memory that the kernels of a queue share, one after the other: of the device,
// or of the host if the kernels are emulated.
class Scratch {
 public:
  explicit Scratch(Queue& queue) : queue_(queue) {}

  // The bytes are valid until the last kernel is done: outgrown memory is kept,
  // since kernels that are enqueued use it.
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

absl::StatusOr<Int8Sources> SourcesOf(StateKernels::Sources sources) {
  if (sources.size() > kMostSources) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sum of ", sources.size(), " int8 messages; a kernel adds ",
        kMostSources, " at most: reduce over smaller groups"));
  }
  Int8Sources all = {};
  for (const auto source : sources) all.encodings[all.count++] = source.data();
  return all;
}

class CudaKernels final : public StateKernels {
 public:
  explicit CudaKernels(Queue& queue)
      : stream_(queue.native_handle()), terms_(queue) {}

  bool enqueues() const override { return true; }

  absl::Status Add(DType dtype, const std::byte* from, std::byte* to,
                   int64_t count) override {
    LaunchAdd(stream_, dtype, from, to, count);
    return absl::OkStatus();
  }
  absl::Status EncodeInt8(DType dtype, std::span<const std::byte> values,
                          std::span<std::byte> encoded) override {
    LaunchEncodeInt8(stream_, dtype, values.data(),
                     ElementsOf(dtype, values.size()), encoded.data());
    return absl::OkStatus();
  }
  absl::Status SumInt8(Sources sources, float divisor, DType dtype,
                       std::span<std::byte> values) override {
    TESSERA_ASSIGN_OR_RETURN(const Int8Sources all, SourcesOf(sources));
    LaunchSumInt8(stream_, all, divisor, dtype,
                  ElementsOf(dtype, values.size()), values.data());
    return absl::OkStatus();
  }
  absl::Status SumInt8Encoded(Sources sources, int64_t elements,
                              std::span<std::byte> encoded) override {
    TESSERA_ASSIGN_OR_RETURN(const Int8Sources all, SourcesOf(sources));
    LaunchSumInt8Encoded(stream_, all, elements, encoded.data());
    return absl::OkStatus();
  }
  absl::Status Measure(const offload::ConstTypedSpan& gradient,
                       std::span<std::byte> result) override {
    const auto terms =
        static_cast<size_t>(offload::TESSERA_KERNELS::TermsOf(gradient.size()));
    TESSERA_ASSIGN_OR_RETURN(std::byte* const scratch,
                             terms_.Take(terms * sizeof(RunStatistics)));
    offload::TESSERA_KERNELS::LaunchStatistics(
        stream_, gradient.dtype(), gradient.data(), gradient.size(),
        reinterpret_cast<RunStatistics*>(scratch),
        reinterpret_cast<RunStatistics*>(result.data()));
    return absl::OkStatus();
  }
  absl::Status Step(offload::AdamW&, const offload::RangesStep& prepared,
                    const offload::ParameterRange& range) override {
    return StepOn(prepared, range);
  }
  absl::Status Step(offload::Sgd&, const offload::RangesStep& prepared,
                    const offload::ParameterRange& range) override {
    return StepOn(prepared, range);
  }

 private:
  static int64_t ElementsOf(DType dtype, size_t bytes) {
    return static_cast<int64_t>(bytes) / SizeInBytes(dtype);
  }

  absl::Status StepOn(const offload::RangesStep& prepared,
                      const offload::ParameterRange& range) {
    offload::TESSERA_KERNELS::LaunchStep(
        stream_, offload::JobOf(prepared, range, 0, range.parameter.size()));
    return absl::OkStatus();
  }

  const KernelStream stream_;
  Scratch terms_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<StateOps>> CudaStateOps(Queue& queue) {
  const bool is_native = queue.native_handle() != nullptr;
  if (is_native == kIsEmulated) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CudaStateOps on device ", queue.device().name(), ": ",
        kIsEmulated ? "emulated kernels need a queue whose work the host does"
                    : "native kernels need the queue of a CUDA device"));
  }
  return StateOpsOf(queue, std::make_shared<CudaKernels>(queue));
}

}  // namespace tessera::zero3::TESSERA_KERNELS
