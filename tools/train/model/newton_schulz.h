// Orthogonalise: the matrix that Muon steps along, near the orthogonal factor
// of a momentum.
//
//   Tensor other = ..., scratch = ...;  // Uninitialised.
//   TESSERA_ASSIGN_OR_RETURN(
//       const TensorView update,
//       Orthogonalise(ops, x, other.view(), scratch.view()));
//
// With x = U S V^T, first divided by its Frobenius norm, five iterations
//
//   x <- a x + (b x x^T + c (x x^T)^2) x,   (a, b, c) = (3.4445,
//   -4.775, 2.0315)
//
// lead to U S' V^T, where S' is in [0.68, 1.135] for S of at least a hundredth
// of the norm, and in [0.68, 1.21] from 0.0015 on; smaller ones grow 485 times.
// An iteration on [m, n] takes 4 k^2 l + 2 k^3 operations, k the smaller and l
// the larger of both. A matrix of zeros stays one.
//
// Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural
// networks", 2024. Products here are in the type of x, f32 or f64, instead of
// bf16: a sharded run then follows a run of one rank.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_NEWTON_SCHULZ_H_
#define TESSERA_TOOLS_TRAIN_MODEL_NEWTON_SCHULZ_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::train {

// Elements of scratch memory for a matrix: two squares of its smaller side and
// a few vectors.
int64_t NewtonSchulzElements(int64_t rows, int64_t columns);

// Enqueues the iterations on x [rows, columns], contiguous and not empty, of
// f32 or f64. `other`, of the same shape, and `scratch`, of at least
// NewtonSchulzElements in one dimension, are of the same type. All three are
// overwritten; returns x or `other`, which has the result.
absl::StatusOr<TensorView> Orthogonalise(tensor_parallel::Ops& ops,
                                         TensorView x, TensorView other,
                                         TensorView scratch);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_NEWTON_SCHULZ_H_
