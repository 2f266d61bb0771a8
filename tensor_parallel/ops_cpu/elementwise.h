// The elementwise operations of ops/ops.h on the CPU. Memory-bound: each reads
// and writes every element once, in the calling thread. x and y may be the same
// view, and must not overlap otherwise.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ELEMENTWISE_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ELEMENTWISE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::cpu {

absl::Status AddBias(const ConstTensorView& bias, const TensorView& x);
absl::Status SumRows(const ConstTensorView& gradient,
                     const TensorView& bias_gradient);
absl::Status Add(const ConstTensorView& x, const TensorView& y);
absl::Status Scale(double factor, const TensorView& x);
absl::Status Fill(double value, const TensorView& x);
absl::Status Cast(const ConstTensorView& x, const TensorView& y);
absl::Status RowDots(const ConstTensorView& output,
                     const ConstTensorView& output_gradient,
                     const TensorView& dots);

// The activations of ops/ops.h on the CPU. Memory-bound where vectors are wide;
// in the calling thread. Outputs may be inputs, and must not overlap otherwise.

absl::Status SwiGlu(const ConstTensorView& gate, const ConstTensorView& up,
                    const TensorView& y);
absl::Status SwiGluGradient(const ConstTensorView& gradient,
                            const ConstTensorView& gate,
                            const ConstTensorView& up,
                            const TensorView& gate_gradient,
                            const TensorView& up_gradient);

// RMSNorm of ops/ops.h on the CPU. Memory-bound; in the calling thread. Sums
// are taken in statistics. y and the gradient of x may be x or the gradient;
// other tensors must not overlap.

absl::Status RmsNorm(double epsilon, const ConstTensorView& x,
                     const ConstTensorView& weight, const TensorView& y,
                     const TensorView& inverse);
absl::Status RmsNormInputGradient(const ConstTensorView& gradient,
                                  const ConstTensorView& x,
                                  const ConstTensorView& weight,
                                  const ConstTensorView& inverse,
                                  const TensorView& x_gradient);
absl::Status RmsNormWeightGradient(const ConstTensorView& gradient,
                                   const ConstTensorView& x,
                                   const ConstTensorView& inverse,
                                   const TensorView& weight_gradient);

// Rotary positions of ops/ops.h on the CPU.
//
//   RotaryTable table;
//   TESSERA_RETURN_IF_ERROR(table.Rotate(10000, false, positions, query));
//   TESSERA_RETURN_IF_ERROR(table.Rotate(10000, false, positions, key));
//
// Angles are computed in f64. The table keeps the sines and cosines of the last
// call, of d values a token in statistics, and computes them anew only where
// base, d, type or positions are others. Used by one thread at a time.

class RotaryTable {
 public:
  absl::Status Rotate(double base, bool inverse,
                      std::span<const int64_t> positions, const TensorView& x);

 private:
  template <typename S>
  void Prepare(std::vector<S>& table, double base, int64_t d,
               std::span<const int64_t> positions);

  double base_ = 0;
  int64_t d_ = 0;
  std::vector<int64_t> positions_;
  // For each token d/2 cosines, then d/2 sines; one of the two is in use.
  std::vector<float> f32_;
  std::vector<double> f64_;
};

// GatherRows and AddRows of ops/ops.h on the CPU. Memory-bound; in the calling
// thread. AddRows sorts the ids (stably, with 8 bytes for each), so that each
// row of the table is read, added to in statistics and rounded once.

absl::Status GatherRows(const ConstTensorView& table, IndexRange held,
                        std::span<const int64_t> ids, const TensorView& y);
absl::Status AddRows(const ConstTensorView& gradient, IndexRange held,
                     std::span<const int64_t> ids,
                     const TensorView& table_gradient);

// The parts of softmax cross-entropy of ops/ops.h on the CPU. Memory-bound
// where vectors are wide: each reads the logits once, the gradient writes them
// too. In the calling thread.

absl::Status RowMax(const ConstTensorView& logits, const TensorView& largest);
absl::Status SumExp(const ConstTensorView& logits,
                    const ConstTensorView& largest, const TensorView& sum);
absl::Status Pick(const ConstTensorView& logits, IndexRange held,
                  std::span<const int64_t> targets, const TensorView& picked);
absl::Status CrossEntropyLosses(const ConstTensorView& largest,
                                const ConstTensorView& sum,
                                const ConstTensorView& picked,
                                std::span<double> losses);
absl::Status CrossEntropyGradient(const ConstTensorView& largest,
                                  const ConstTensorView& sum, IndexRange held,
                                  std::span<const int64_t> targets,
                                  std::span<const double> scales,
                                  const TensorView& logits);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ELEMENTWISE_H_
