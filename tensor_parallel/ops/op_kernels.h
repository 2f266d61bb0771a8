// OpKernels: the kernels of operations, which a device implements.
//
//   CheckedOps ops(queue, std::make_shared<MyKernels>());   // checked_ops.h
//
// CheckedOps checks operands and enqueues a kernel with the memory that it
// accesses; the kernel then sees views of the same elements that it may access.
//
//   kernels        where                      addresses
//   CpuKernels     ops_cpu/cpu_kernels.h      of the host
//   CudaKernels    ops_cuda/cuda_kernels.h    of the GPU: a call enqueues work
//                                             on the queue's stream. Emulated:
//                                             of the host; a call does the work
#ifndef TESSERA_TENSOR_PARALLEL_OPS_OP_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_OP_KERNELS_H_

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/operand_checker.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// One method for each operation of Ops (ops.h), with its meaning. Arguments are
// valid. The views' memory kind is that of memory which the kernels access.
// Calls come one after the other, in the order of the queue; on which thread
// depends on the device.
class OpKernels {
 public:
  virtual ~OpKernels() = default;

  // True if calls enqueue work on Queue::native_handle() instead of doing it.
  virtual bool enqueues() const = 0;

  // What the device requires beyond Ops: limits of libraries, for example.
  // Called before the operation is enqueued.
  virtual void CheckGemm(OperandChecker&, const GemmOptions&,
                         const ConstTensorView& /*a*/,
                         const ConstTensorView& /*b*/,
                         const TensorView& /*c*/) const {}
  virtual void CheckGemmFp8(OperandChecker&, const ConstTensorView& /*a*/,
                            const ConstTensorView& /*b*/,
                            const TensorView& /*c*/) const {}
  virtual void CheckAttention(OperandChecker&, const AttentionBlock&) const {}
  virtual void CheckAttentionGradient(OperandChecker&, const AttentionBlock&,
                                      const AttentionGradients&) const {}

  virtual absl::Status Gemm(const GemmOptions& options,
                            const ConstTensorView& a, const ConstTensorView& b,
                            const TensorView& c) = 0;
  // Outputs that are not wanted have no elements.
  virtual absl::Status CastTranspose(const ConstTensorView& x,
                                     const ConstTensorView& scale,
                                     const TensorView& amax,
                                     const TensorView& y,
                                     const TensorView& transposed) = 0;
  virtual absl::Status GemmFp8(const Fp8GemmOptions& options,
                               const ConstTensorView& a,
                               const ConstTensorView& a_inverse,
                               const ConstTensorView& b,
                               const ConstTensorView& b_inverse,
                               const TensorView& c) = 0;
  virtual absl::Status UpdateScales(int margin, const ConstTensorView& largest,
                                    const TensorView& amax,
                                    const TensorView& history,
                                    const TensorView& scale,
                                    const TensorView& inverse) = 0;
  virtual absl::Status AddBias(const ConstTensorView& bias,
                               const TensorView& x) = 0;
  virtual absl::Status SumRows(const ConstTensorView& gradient,
                               const TensorView& bias_gradient) = 0;
  virtual absl::Status Copy(const ConstTensorView& x, const TensorView& y) = 0;
  virtual absl::Status Add(const ConstTensorView& x, const TensorView& y) = 0;
  virtual absl::Status Scale(double factor, const TensorView& x) = 0;
  virtual absl::Status Fill(double value, const TensorView& x) = 0;
  virtual absl::Status Cast(const ConstTensorView& x, const TensorView& y) = 0;
  virtual absl::Status Dropout(const DropoutMask& mask,
                               const TensorView& x) = 0;
  virtual absl::Status RmsNorm(double epsilon, const ConstTensorView& x,
                               const ConstTensorView& weight,
                               const TensorView& y,
                               const TensorView& inverse) = 0;
  virtual absl::Status RmsNormInputGradient(const ConstTensorView& gradient,
                                            const ConstTensorView& x,
                                            const ConstTensorView& weight,
                                            const ConstTensorView& inverse,
                                            const TensorView& x_gradient) = 0;
  virtual absl::Status AddRmsNorm(double epsilon,
                                  const ConstTensorView& residual,
                                  const ConstTensorView& weight,
                                  const TensorView& x, const TensorView& y,
                                  const TensorView& inverse) = 0;
  virtual absl::Status AddRmsNormInputGradient(
      const ConstTensorView& gradient, const ConstTensorView& x,
      const ConstTensorView& weight, const ConstTensorView& inverse,
      const ConstTensorView& residual_gradient,
      const TensorView& x_gradient) = 0;
  virtual absl::Status RmsNormWeightGradient(
      const ConstTensorView& gradient, const ConstTensorView& x,
      const ConstTensorView& inverse, const TensorView& weight_gradient) = 0;
  virtual absl::Status Glu(GluKind kind, const ConstTensorView& gate,
                           const ConstTensorView& up, const TensorView& y) = 0;
  virtual absl::Status GluGradient(GluKind kind,
                                   const ConstTensorView& gradient,
                                   const ConstTensorView& gate,
                                   const ConstTensorView& up,
                                   const TensorView& gate_gradient,
                                   const TensorView& up_gradient) = 0;
  virtual absl::Status Rotate(const RotaryFrequencies& frequencies,
                              bool inverse, const ConstTensorView& positions,
                              const TensorView& x) = 0;
  virtual absl::Status GatherRows(const ConstTensorView& table, IndexRange held,
                                  const ConstTensorView& ids,
                                  const TensorView& y) = 0;
  virtual absl::Status AddRows(const ConstTensorView& gradient, IndexRange held,
                               const ConstTensorView& ids,
                               const TensorView& table_gradient) = 0;
  virtual absl::Status RowMax(const ConstTensorView& logits,
                              const TensorView& largest) = 0;
  virtual absl::Status SumExp(const ConstTensorView& logits,
                              const ConstTensorView& largest,
                              const TensorView& sum) = 0;
  virtual absl::Status Pick(const ConstTensorView& logits, IndexRange held,
                            const ConstTensorView& targets,
                            const TensorView& picked) = 0;
  virtual absl::Status CrossEntropyLosses(const ConstTensorView& largest,
                                          const ConstTensorView& sum,
                                          const ConstTensorView& picked,
                                          const ConstTensorView& targets,
                                          const TensorView& losses) = 0;
  virtual absl::Status CrossEntropyGradient(const ConstTensorView& largest,
                                            const ConstTensorView& sum,
                                            IndexRange held,
                                            const ConstTensorView& targets,
                                            const ConstTensorView& scales,
                                            const LossTerms& terms,
                                            const TensorView& logits) = 0;
  virtual absl::Status Route(const RouterOptions& options,
                             const ConstTensorView& logits,
                             const ConstTensorView& bias,
                             const TensorView& weights,
                             const TensorView& experts) = 0;
  virtual absl::Status RouteGradient(const RouterOptions& options,
                                     const ConstTensorView& logits,
                                     const ConstTensorView& experts,
                                     const ConstTensorView& weights_gradient,
                                     const ConstTensorView& balance,
                                     double z_loss,
                                     const TensorView& logits_gradient) = 0;
  virtual absl::Status ScaleRows(const ConstTensorView& scales,
                                 const ConstTensorView& x,
                                 const TensorView& y) = 0;
  virtual absl::Status ScaleRowsGradient(const ConstTensorView& gradient,
                                         const ConstTensorView& scales,
                                         const ConstTensorView& x,
                                         const TensorView& x_gradient,
                                         const TensorView& scales_gradient) = 0;
  virtual absl::Status Sum(double factor, const ConstTensorView& x,
                           const TensorView& total) = 0;
  virtual absl::Status Attend(const AttentionBlock& block,
                              const AttentionState& state) = 0;
  virtual absl::Status AttendGradient(const AttentionBlock& block,
                                      const AttentionGradients& gradients) = 0;
  virtual absl::Status RowDots(const ConstTensorView& output,
                               const ConstTensorView& output_gradient,
                               const TensorView& dots) = 0;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_OP_KERNELS_H_
