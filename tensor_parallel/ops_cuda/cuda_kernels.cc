#include "tensor_parallel/ops_cuda/cuda_kernels.h"

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda/stream.h"
#include "base/device/device.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/checked_ops.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/attention.h"
#include "tensor_parallel/ops_cuda/cross_entropy.h"
#include "tensor_parallel/ops_cuda/elementwise.h"
#include "tensor_parallel/ops_cuda/embedding.h"
#include "tensor_parallel/ops_cuda/fp8.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"
#include "tensor_parallel/ops_cuda/router.h"
#include "tensor_parallel/ops_cuda/row_sums.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

namespace kernels = ::tessera::tensor_parallel::TESSERA_KERNELS;

namespace {

constexpr int64_t kFp8Unit = 16;

}  // namespace

CudaKernels::CudaKernels(Queue& queue, Scratch scratch)
    : queue_(queue),
      stream_(queue.native_handle()),
      scratch_(std::move(scratch)) {}

absl::StatusOr<std::shared_ptr<CudaKernels>> CudaKernels::Create(
    Queue& queue, const CudaOpsOptions& options) {
  using ::tessera::TESSERA_KERNELS::kIsEmulated;
  if (kIsEmulated != (queue.native_handle() == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CreateCudaOps: the queue is of device ", queue.device().name(),
        kIsEmulated ? ", whose streams run no emulated kernels: use "
                      "native::CreateCudaOps"
                    : ", which has no CUDA stream: create the queue with a "
                      "CudaDevice, or use CpuOps"));
  }
  Scratch scratch = kIsEmulated ? Scratch(HostMemory())
                                : Scratch(queue.device().memory(), [&queue] {
                                    return queue.Synchronize();
                                  });
  std::shared_ptr<CudaKernels> kernels(
      new CudaKernels(queue, std::move(scratch)));
  TESSERA_ASSIGN_OR_RETURN(kernels->gemm_, CudaGemm::Create(queue));
  TESSERA_ASSIGN_OR_RETURN(
      kernels->cudnn_,
      CreateCudnnAttention(queue, {.deterministic = options.deterministic},
                           kernels->scratch_));
  return kernels;
}

void CudaKernels::CheckGemm(OperandChecker& check, const GemmOptions&,
                            const ConstTensorView& a, const ConstTensorView& b,
                            const TensorView& c) const {
  check.HasSeparateRows("a", a, INT32_MAX)
      .HasSeparateRows("b", b, INT32_MAX)
      .HasSeparateRows("c", c, INT32_MAX);
}

absl::Status CudaKernels::Gemm(const GemmOptions& options,
                               const ConstTensorView& a,
                               const ConstTensorView& b, const TensorView& c) {
  return gemm_->Run(stream_, options, a, b, c);
}

// The tensor cores take fp8 in units of 16 bytes (cuBLAS, "Using FP8 data
// types"); emulated, too, so that tests find what a GPU would refuse.
void CudaKernels::CheckGemmFp8(OperandChecker& check, const ConstTensorView& a,
                               const ConstTensorView& b,
                               const TensorView& c) const {
  CheckGemm(check, {}, a, b, c);
  const auto require = [&](const char* name, const ConstTensorView& view) {
    const bool is_whole =
        view.shape()[0] % kFp8Unit == 0 && view.shape()[1] % kFp8Unit == 0;
    check.Requires(
        is_whole && RowsAreAligned(view),
        absl::StrCat("\"", name, "\" has shape ", DimsToString(view.shape()),
                     " and strides ", DimsToString(view.strides()),
                     "; products in fp8 on a GPU require sizes that are "
                     "multiples of ",
                     kFp8Unit,
                     ", and rows that begin at multiples of 16 bytes: choose "
                     "such sizes, or multiply in bf16."));
  };
  require("a", a);
  require("b", b);
  require("c", c);
}

absl::Status CudaKernels::CastTranspose(const ConstTensorView& x,
                                        const ConstTensorView& scale,
                                        const TensorView& amax,
                                        const TensorView& y,
                                        const TensorView& transposed) {
  return kernels::CastTranspose(stream_, x, scale, amax, y, transposed);
}

absl::Status CudaKernels::GemmFp8(const Fp8GemmOptions& options,
                                  const ConstTensorView& a,
                                  const ConstTensorView& a_inverse,
                                  const ConstTensorView& b,
                                  const ConstTensorView& b_inverse,
                                  const TensorView& c) {
  return gemm_->RunFp8(stream_, options, a, a_inverse, b, b_inverse, c);
}

absl::Status CudaKernels::UpdateScales(int margin,
                                       const ConstTensorView& largest,
                                       const TensorView& amax,
                                       const TensorView& history,
                                       const TensorView& scale,
                                       const TensorView& inverse) {
  return kernels::UpdateScales(stream_, margin, largest, amax, history, scale,
                               inverse);
}

absl::Status CudaKernels::Dropout(const DropoutMask& mask,
                                  const TensorView& x) {
  const auto bytes = std::as_bytes(mask.rows);
  const int64_t* rows = mask.rows.data();
  if constexpr (!::tessera::TESSERA_KERNELS::kIsEmulated) {
    TESSERA_ASSIGN_OR_RETURN(
        std::byte* const numbers,
        scratch_.Reserve(static_cast<int64_t>(bytes.size())));
    TESSERA_RETURN_IF_ERROR(queue_.Copy(bytes, {numbers, bytes.size()}));
    rows = reinterpret_cast<const int64_t*>(numbers);
  }
  return kernels::Dropout(stream_, mask.key, mask.probability, rows, x);
}

absl::Status CudaKernels::Attend(const AttentionBlock& block,
                                 const AttentionState& state) {
  if (cudnn_ != nullptr && block.query.element_count() > 0 &&
      block.key.element_count() > 0 && cudnn_->Supports(block)) {
    return cudnn_->Attend(stream_, block, state);
  }
  return kernels::Attend(stream_, block, state);
}

absl::Status CudaKernels::AttendGradient(const AttentionBlock& block,
                                         const AttentionGradients& gradients) {
  if (cudnn_ != nullptr && block.query.element_count() > 0 &&
      block.key.element_count() > 0 &&
      cudnn_->SupportsGradient(block, gradients)) {
    return cudnn_->AttendGradient(stream_, block, gradients);
  }
  return kernels::AttendGradient(stream_, block, gradients);
}

absl::Status CudaKernels::AddBias(const ConstTensorView& bias,
                                  const TensorView& x) {
  return kernels::AddBias(stream_, bias, x);
}

absl::Status CudaKernels::SumRows(const ConstTensorView& gradient,
                                  const TensorView& bias_gradient) {
  return kernels::SumRows(stream_, scratch_, gradient, bias_gradient);
}

absl::Status CudaKernels::Copy(const ConstTensorView& x, const TensorView& y) {
  return kernels::Copy(stream_, x, y);
}

absl::Status CudaKernels::Add(const ConstTensorView& x, const TensorView& y) {
  return kernels::Add(stream_, x, y);
}

absl::Status CudaKernels::Scale(double factor, const TensorView& x) {
  return kernels::Scale(stream_, factor, x);
}

absl::Status CudaKernels::Fill(double value, const TensorView& x) {
  return kernels::Fill(stream_, value, x);
}

absl::Status CudaKernels::Cast(const ConstTensorView& x, const TensorView& y) {
  return kernels::Cast(stream_, x, y);
}

absl::Status CudaKernels::RmsNorm(double epsilon, const ConstTensorView& x,
                                  const ConstTensorView& weight,
                                  const TensorView& y,
                                  const TensorView& inverse) {
  return kernels::RmsNorm(stream_, epsilon, x, weight, y, inverse);
}

absl::Status CudaKernels::RmsNormInputGradient(const ConstTensorView& gradient,
                                               const ConstTensorView& x,
                                               const ConstTensorView& weight,
                                               const ConstTensorView& inverse,
                                               const TensorView& x_gradient) {
  return kernels::RmsNormInputGradient(stream_, gradient, x, weight, inverse,
                                       x_gradient);
}

absl::Status CudaKernels::AddRmsNorm(double epsilon,
                                     const ConstTensorView& residual,
                                     const ConstTensorView& weight,
                                     const TensorView& x, const TensorView& y,
                                     const TensorView& inverse) {
  return kernels::AddRmsNorm(stream_, epsilon, residual, weight, x, y, inverse);
}

absl::Status CudaKernels::AddRmsNormInputGradient(
    const ConstTensorView& gradient, const ConstTensorView& x,
    const ConstTensorView& weight, const ConstTensorView& inverse,
    const ConstTensorView& residual_gradient, const TensorView& x_gradient) {
  return kernels::AddRmsNormInputGradient(stream_, gradient, x, weight, inverse,
                                          residual_gradient, x_gradient);
}

absl::Status CudaKernels::RmsNormWeightGradient(
    const ConstTensorView& gradient, const ConstTensorView& x,
    const ConstTensorView& inverse, const TensorView& weight_gradient) {
  return kernels::RmsNormWeightGradient(stream_, scratch_, gradient, x, inverse,
                                        weight_gradient);
}

absl::Status CudaKernels::Glu(GluKind kind, const ConstTensorView& gate,
                              const ConstTensorView& up, const TensorView& y) {
  return kernels::Glu(stream_, kind, gate, up, y);
}

absl::Status CudaKernels::GluGradient(GluKind kind,
                                      const ConstTensorView& gradient,
                                      const ConstTensorView& gate,
                                      const ConstTensorView& up,
                                      const TensorView& gate_gradient,
                                      const TensorView& up_gradient) {
  return kernels::GluGradient(stream_, kind, gradient, gate, up, gate_gradient,
                              up_gradient);
}

absl::Status CudaKernels::Rotate(const RotaryFrequencies& frequencies,
                                 bool inverse, const ConstTensorView& positions,
                                 const TensorView& x) {
  return kernels::Rotate(stream_, frequencies, inverse, positions, x);
}

absl::Status CudaKernels::GatherRows(const ConstTensorView& table,
                                     IndexRange held,
                                     const ConstTensorView& ids,
                                     const TensorView& y) {
  return kernels::GatherRows(stream_, table, held, ids, y);
}

absl::Status CudaKernels::AddRows(const ConstTensorView& gradient,
                                  IndexRange held, const ConstTensorView& ids,
                                  const TensorView& table_gradient) {
  return kernels::AddRows(stream_, scratch_, gradient, held, ids,
                          table_gradient);
}

absl::Status CudaKernels::RowMax(const ConstTensorView& logits,
                                 const TensorView& largest) {
  return kernels::RowMax(stream_, logits, largest);
}

absl::Status CudaKernels::SumExp(const ConstTensorView& logits,
                                 const ConstTensorView& largest,
                                 const TensorView& sum) {
  return kernels::SumExp(stream_, logits, largest, sum);
}

absl::Status CudaKernels::Pick(const ConstTensorView& logits, IndexRange held,
                               const ConstTensorView& targets,
                               const TensorView& picked) {
  return kernels::Pick(stream_, logits, held, targets, picked);
}

absl::Status CudaKernels::CrossEntropyLosses(const ConstTensorView& largest,
                                             const ConstTensorView& sum,
                                             const ConstTensorView& picked,
                                             const ConstTensorView& targets,
                                             const TensorView& losses) {
  return kernels::CrossEntropyLosses(stream_, largest, sum, picked, targets,
                                     losses);
}

absl::Status CudaKernels::CrossEntropyGradient(
    const ConstTensorView& largest, const ConstTensorView& sum, IndexRange held,
    const ConstTensorView& targets, const ConstTensorView& scales,
    const LossTerms& terms, const TensorView& logits) {
  return kernels::CrossEntropyGradient(stream_, largest, sum, held, targets,
                                       scales, terms, logits);
}

absl::Status CudaKernels::Route(const RouterOptions& options,
                                const ConstTensorView& logits,
                                const ConstTensorView& bias,
                                const TensorView& weights,
                                const TensorView& experts) {
  return kernels::Route(stream_, options, logits, bias, weights, experts);
}

absl::Status CudaKernels::RouteGradient(const RouterOptions& options,
                                        const ConstTensorView& logits,
                                        const ConstTensorView& experts,
                                        const ConstTensorView& weights_gradient,
                                        const ConstTensorView& balance,
                                        double z_loss,
                                        const TensorView& logits_gradient) {
  return kernels::RouteGradient(stream_, options, logits, experts,
                                weights_gradient, balance, z_loss,
                                logits_gradient);
}

absl::Status CudaKernels::ScaleRows(const ConstTensorView& scales,
                                    const ConstTensorView& x,
                                    const TensorView& y) {
  return kernels::ScaleRows(stream_, scales, x, y);
}

absl::Status CudaKernels::ScaleRowsGradient(const ConstTensorView& gradient,
                                            const ConstTensorView& scales,
                                            const ConstTensorView& x,
                                            const TensorView& x_gradient,
                                            const TensorView& scales_gradient) {
  return kernels::ScaleRowsGradient(stream_, gradient, scales, x, x_gradient,
                                    scales_gradient);
}

absl::Status CudaKernels::Sum(double factor, const ConstTensorView& x,
                              const TensorView& total) {
  return kernels::Sum(stream_, factor, x, total);
}

absl::Status CudaKernels::RowDots(const ConstTensorView& output,
                                  const ConstTensorView& output_gradient,
                                  const TensorView& dots) {
  return kernels::RowDots(stream_, output, output_gradient, dots);
}

absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(
    Queue& queue, const CudaOpsOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<CudaKernels> kernels,
                           CudaKernels::Create(queue, options));
  return std::make_unique<CheckedOps>(queue, std::move(kernels));
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
