// The inverse fourth root of a symmetric positive semidefinite matrix, by
// products of matrices only: no eigenvalues are computed, the result is a
// smooth function of the matrix, and a device is never waited for.
//
//   TESSERA_RETURN_IF_ERROR(
//       InverseFourthRoot(ops, statistics, 1e-6, root, scratch));
//
// For A' = A / ||A||_F + epsilon I, whose eigenvalues are in [epsilon, 1 +
// epsilon], the coupled iterations
//
//   M <- A' / (1 + epsilon), H <- (1 + epsilon)^(-1/4) I
//   T <- a I - b M, M <- T^4 M, H <- H T
//
// converge to M = I and H = A'^(-1/4). With a = 5/4 and b = 1/4 they are
// Newton's, of quadratic convergence, with which small eigenvalues of M grow by
// a factor of 2.4 only. The first iterations have larger factors: b = 4^4 a^5 /
// 5^5, so that the largest image of an eigenvalue in [0, 1] is 1, and a <= 1.5
// such that the range of possible eigenvalues becomes as small as possible:
// small ones grow by a factor of 5. (Larger a lose digits.) The number of
// iterations, each of 8 k^3 operations on [k, k], follows from epsilon: 13 for
// 1e-6 instead of 20.
//
// Sources: C.-H. Guo and N. Higham, "A Schur-Newton method for the matrix pth
// root and its inverse", SIAM Journal on Matrix Analysis and Applications 28,
// 2006, (3.6), for Newton's iterations; R. Anil et al., arXiv 2002.09018,
// appendix, for their use in Shampoo.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_INVERSE_ROOT_H_
#define TESSERA_TOOLS_TRAIN_MODEL_INVERSE_ROOT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::train {

// The factor a of each iteration, until all eigenvalues of M are 1.
std::vector<double> InverseRootFactors(double epsilon);

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
