// CpuKernels: the kernels of operations on the CPU.
//
// Elementwise operations, norms, activations, cross-entropy and row tables are
// bound by memory, or by vectors where these are narrow: each reads and writes
// every element once, in parts that the threads of the pool take, and sums in
// statistics. AddRows sorts the
// ids (stably, with 8 bytes for each), so that each row of the table is read,
// added to in statistics and rounded once. Gemm and attention are in gemm.h and
// attention.h.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_KERNELS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/os/thread_pool.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/op_kernels.h"
#include "tensor_parallel/ops/operand_checker.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/rotary.h"
#include "tensor_parallel/random/dropout.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

// Keeps the sines and cosines of the last call, of d values a token in
// statistics; computes them anew, in f64, only where frequencies, d, type or
// positions are others.
class RotaryTable {
 public:
  // For each token d/2 cosines, then d/2 sines. S is float or double.
  template <typename S>
  const S* Get(const RotaryFrequencies& frequencies, int64_t d,
               std::span<const int64_t> positions);

 private:
  RotaryFrequencies frequencies_;
  int64_t d_ = 0;
  std::vector<int64_t> positions_;
  std::vector<float> f32_;  // One of the two is in use.
  std::vector<double> f64_;
};

class CpuKernels final : public OpKernels {
 public:
  explicit CpuKernels(std::shared_ptr<ThreadPool> pool)
      : pool_(std::move(pool)) {}

  bool enqueues() const override { return false; }

  void CheckGemm(OperandChecker& check, const GemmOptions& options,
                 const ConstTensorView& a, const ConstTensorView& b,
                 const TensorView& c) const override;
  void CheckGemmFp8(OperandChecker& check, const ConstTensorView& a,
                    const ConstTensorView& b,
                    const TensorView& c) const override;
  void CheckAttention(OperandChecker& check,
                      const AttentionBlock& block) const override;
  void CheckAttentionGradient(
      OperandChecker& check, const AttentionBlock& block,
      const AttentionGradients& gradients) const override;

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
  std::shared_ptr<ThreadPool> pool_;
  RotaryTable rotary_;
};

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_CPU_KERNELS_H_
