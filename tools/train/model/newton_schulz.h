// Newton-Schulz iterations, which compute Muon's update: a matrix near the
// orthogonal factor of the momentum.
//
//   Tensor other = ..., scratch = ...;  // Uninitialised.
//   TESSERA_ASSIGN_OR_RETURN(
//       const TensorView update,
//       Orthogonalise(ops, x, other.view(), scratch.view()));
//
// x = U S V^T is first divided by its Frobenius norm. Then five iterations
//
//   x <- a x + (b x x^T + c (x x^T)^2) x,   (a, b, c) = (3.4445,
//   -4.775, 2.0315)
//
// yield U S' V^T, where S' is in [0.68, 1.135] for S of at least a hundredth of
// the norm, and in [0.68, 1.21] for S of at least 0.0015 of it; smaller values
// grow by a factor of 485. An iteration on [m, n] takes 4 k^2 l + 2 k^3
// operations, where k is the smaller and l the larger of m and n. A zero matrix
// remains zero.
//
// Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural
// networks", 2024. Products use the type of x, f32 or f64, instead of bf16, so
// that a sharded run matches a run of one rank.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_NEWTON_SCHULZ_H_
#define TESSERA_TOOLS_TRAIN_MODEL_NEWTON_SCHULZ_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::train {

// The number of scratch elements for a matrix: two squares of its smaller side
// and a few vectors.
int64_t NewtonSchulzElements(int64_t rows, int64_t columns);

// Enqueues the iterations on x [rows, columns], which is contiguous, not empty,
// and f32 or f64. `other`, of the same shape, and `scratch`, a vector of at
// least NewtonSchulzElements, have the same type. Overwrites all three and
// returns the one of x and `other` that holds the result.
absl::StatusOr<TensorView> Orthogonalise(tensor_parallel::Ops& ops,
                                         TensorView x, TensorView other,
                                         TensorView scratch);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_NEWTON_SCHULZ_H_
