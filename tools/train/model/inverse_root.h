// The inverse fourth root of a symmetric positive semidefinite matrix, by
// products of matrices only: no eigenvalues are computed, the result is a
// smooth function of the matrix, and a device is never waited for.
//
//   TESSERA_RETURN_IF_ERROR(
//       InverseFourthRoot(ops, statistics, 1e-6, root, scratch));
//
// For A' = A / ||A||_F + epsilon I, whose eigenvalues are in [epsilon, 1 +
// epsilon], the coupled Newton iterations
//
//   M <- z A', H <- z^(1/4) I, where z = 2.5 / (1 + epsilon)
//   T <- (5 I - M) / 4, M <- T^4 M, H <- H T
//
// converge to M = I and H = A'^(-1/4): an eigenvalue of M is in (0, 2.5] and
// becomes at most 1, small ones grow by a factor of 2.44. Their number follows
// from epsilon: 20 for 1e-6, each of 8 k^3 operations on [k, k]. Iterations
// past the convergence of an eigenvalue leave it.
//
// Sources: C.-H. Guo and N. Higham, "A Schur-Newton method for the matrix pth
// root and its inverse", SIAM Journal on Matrix Analysis and Applications 28,
// 2006, (3.6); R. Anil et al., arXiv 2002.09018, appendix.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_INVERSE_ROOT_H_
#define TESSERA_TOOLS_TRAIN_MODEL_INVERSE_ROOT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::train {

// The number of iterations after which all eigenvalues of M are 1.
int InverseRootIterations(double epsilon);

// The number of scratch elements for a matrix [size, size].
int64_t InverseRootElements(int64_t size);

// Enqueues root = (a / ||a||_F + epsilon I)^(-1/4). a and root [size, size] are
// contiguous, not empty, and f32 or f64; `scratch`, a vector of at least
// InverseRootElements, has the same type. 0 < epsilon <= 1.
absl::Status InverseFourthRoot(tensor_parallel::Ops& ops, const TensorView& a,
                               double epsilon, const TensorView& root,
                               const TensorView& scratch);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_INVERSE_ROOT_H_
