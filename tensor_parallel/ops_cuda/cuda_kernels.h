// CudaKernels: the kernels of operations on a GPU, and the same ones emulated
// on the CPU.
//
// Products are cuBLASLt's (gemm.h). Attention in bf16 is cuDNN's where it has a
// plan for the block (cudnn_attention.h), otherwise our own (attention.h). All
// else is in the .cu files beside this one.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_KERNELS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "base/device/device.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/op_kernels.h"
#include "tensor_parallel/ops/operand_checker.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"
#include "tensor_parallel/ops_cuda/cudnn_attention.h"
#include "tensor_parallel/ops_cuda/gemm.h"
#include "tensor_parallel/ops_cuda/scratch.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

class CudaKernels final : public OpKernels {
 public:
  // `queue` outlives the kernels.
  static absl::StatusOr<std::shared_ptr<CudaKernels>> Create(
      Queue& queue, const CudaOpsOptions& options);

  bool enqueues() const override { return true; }

  void CheckGemm(OperandChecker& check, const GemmOptions& options,
                 const ConstTensorView& a, const ConstTensorView& b,
                 const TensorView& c) const override;
  void CheckGemmFp8(OperandChecker& check, const ConstTensorView& a,
                    const ConstTensorView& b,
                    const TensorView& c) const override;

  absl::Status Gemm(const GemmOptions& options, const ConstTensorView& a,
                    const ConstTensorView& b, const TensorView& c) override;
  absl::Status CastTranspose(const ConstTensorView& x,
                             const ConstTensorView& scale,
                             const TensorView& amax, const TensorView& y,
                             const TensorView& transposed) override;
  absl::Status GemmFp8(const Fp8GemmOptions& options, const ConstTensorView& a,
                       const ConstTensorView& a_inverse,
                       const ConstTensorView& b,
                       const ConstTensorView& b_inverse,
                       const TensorView& c) override;
  absl::Status UpdateScales(int margin, const ConstTensorView& largest,
                            const TensorView& amax, const TensorView& history,
                            const TensorView& scale,
                            const TensorView& inverse) override;
  absl::Status AddBias(const ConstTensorView& bias,
                       const TensorView& x) override;
  absl::Status SumRows(const ConstTensorView& gradient,
                       const TensorView& bias_gradient) override;
  absl::Status Copy(const ConstTensorView& x, const TensorView& y) override;
  absl::Status Add(const ConstTensorView& x, const TensorView& y) override;
  absl::Status Scale(double factor, const TensorView& x) override;
  absl::Status Fill(double value, const TensorView& x) override;
  absl::Status Cast(const ConstTensorView& x, const TensorView& y) override;
  absl::Status Dropout(const DropoutMask& mask, const TensorView& x) override;
  absl::Status RmsNorm(double epsilon, const ConstTensorView& x,
                       const ConstTensorView& weight, const TensorView& y,
                       const TensorView& inverse) override;
  absl::Status RmsNormInputGradient(const ConstTensorView& gradient,
                                    const ConstTensorView& x,
                                    const ConstTensorView& weight,
                                    const ConstTensorView& inverse,
                                    const TensorView& x_gradient) override;
  absl::Status AddRmsNorm(double epsilon, const ConstTensorView& residual,
                          const ConstTensorView& weight, const TensorView& x,
                          const TensorView& y,
                          const TensorView& inverse) override;
  absl::Status AddRmsNormInputGradient(const ConstTensorView& gradient,
                                       const ConstTensorView& x,
                                       const ConstTensorView& weight,
                                       const ConstTensorView& inverse,
                                       const ConstTensorView& residual_gradient,
                                       const TensorView& x_gradient) override;
  absl::Status RmsNormWeightGradient(
      const ConstTensorView& gradient, const ConstTensorView& x,
      const ConstTensorView& inverse,
      const TensorView& weight_gradient) override;
  absl::Status Glu(GluKind kind, const ConstTensorView& gate,
                   const ConstTensorView& up, const TensorView& y) override;
  absl::Status GluGradient(GluKind kind, const ConstTensorView& gradient,
                           const ConstTensorView& gate,
                           const ConstTensorView& up,
                           const TensorView& gate_gradient,
                           const TensorView& up_gradient) override;
  absl::Status Rotate(const RotaryFrequencies& frequencies, bool inverse,
                      const ConstTensorView& positions,
                      const TensorView& x) override;
  absl::Status GatherRows(const ConstTensorView& table, IndexRange held,
                          const ConstTensorView& ids,
                          const TensorView& y) override;
  absl::Status AddRows(const ConstTensorView& gradient, IndexRange held,
                       const ConstTensorView& ids,
                       const TensorView& table_gradient) override;
  absl::Status RowMax(const ConstTensorView& logits,
                      const TensorView& largest) override;
  absl::Status SumExp(const ConstTensorView& logits,
                      const ConstTensorView& largest,
                      const TensorView& sum) override;
  absl::Status Pick(const ConstTensorView& logits, IndexRange held,
                    const ConstTensorView& targets,
                    const TensorView& picked) override;
  absl::Status CrossEntropyLosses(const ConstTensorView& largest,
                                  const ConstTensorView& sum,
                                  const ConstTensorView& picked,
                                  const ConstTensorView& targets,
                                  const TensorView& losses) override;
  absl::Status CrossEntropyGradient(const ConstTensorView& largest,
                                    const ConstTensorView& sum, IndexRange held,
                                    const ConstTensorView& targets,
                                    const ConstTensorView& scales,
                                    const LossTerms& terms,
                                    const TensorView& logits) override;
  absl::Status Route(const RouterOptions& options,
                     const ConstTensorView& logits, const ConstTensorView& bias,
                     const TensorView& weights,
                     const TensorView& experts) override;
  absl::Status RouteGradient(const RouterOptions& options,
                             const ConstTensorView& logits,
                             const ConstTensorView& experts,
                             const ConstTensorView& weights_gradient,
                             const ConstTensorView& balance, double z_loss,
                             const TensorView& logits_gradient) override;
  absl::Status ScaleRows(const ConstTensorView& scales,
                         const ConstTensorView& x,
                         const TensorView& y) override;
  absl::Status ScaleRowsGradient(const ConstTensorView& gradient,
                                 const ConstTensorView& scales,
                                 const ConstTensorView& x,
                                 const TensorView& x_gradient,
                                 const TensorView& scales_gradient) override;
  absl::Status Sum(double factor, const ConstTensorView& x,
                   const TensorView& total) override;
  absl::Status Attend(const AttentionBlock& block,
                      const AttentionState& state) override;
  absl::Status AttendGradient(const AttentionBlock& block,
                              const AttentionGradients& gradients) override;
  absl::Status RowDots(const ConstTensorView& output,
                       const ConstTensorView& output_gradient,
                       const TensorView& dots) override;

 private:
  CudaKernels(Queue& queue, Scratch scratch);

  Queue& queue_;
  const KernelStream stream_;
  Scratch scratch_;
  std::unique_ptr<CudaGemm> gemm_;
  std::unique_ptr<CudnnAttention> cudnn_;  // Null where there is none.
};

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDA_KERNELS_H_
