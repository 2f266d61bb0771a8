#include "tools/train/model/inverse_root.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "tools/train/model/matrix_norm.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

// The largest eigenvalue of M that the iterations take.
constexpr double kLargest = 2.5;

double StartOf(double epsilon) { return kLargest / (1 + epsilon); }

// A square matrix, and its diagonal as a column.
struct Square {
  TensorView all, diagonal;
};

absl::StatusOr<Square> TakeSquare(ScratchParts& parts, int64_t size) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView wider,
                           parts.Take({size, size + 1}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView flat,
                           wider.Reshape({{size * (size + 1)}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView elements,
                           flat.Narrow(0, 0, size * size));
  TESSERA_ASSIGN_OR_RETURN(const TensorView all,
                           elements.Reshape({{size, size}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView diagonal, wider.Narrow(1, 0, 1));
  return Square{all, diagonal};
}

absl::Status AddToDiagonal(tp::Ops& ops, double value, const TensorView& column,
                           const Square& square) {
  TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Fill{value, column}));
  return ops.Run(tp::op::Add{column, square.diagonal});
}

}  // namespace

int InverseRootIterations(double epsilon) {
  // The convergence is quadratic: one more iteration gives all digits of f64.
  constexpr double kNear = 1e-8;
  int most = 0;
  // Eigenvalues between these two converge earlier.
  for (double m : {StartOf(epsilon) * epsilon, kLargest}) {
    int iterations = 1;
    for (; std::abs(1 - m) > kNear; ++iterations) m *= std::pow((5 - m) / 4, 4);
    most = std::max(most, iterations);
  }
  return most;
}

int64_t InverseRootElements(int64_t size) {
  return 2 * ScratchParts::Rounded(size * (size + 1)) +
         2 * ScratchParts::Rounded(size * size) + ScratchParts::Rounded(size) +
         NormElements(size, size);
}

absl::Status InverseFourthRoot(tp::Ops& ops, const TensorView& a,
                               double epsilon, const TensorView& root,
                               const TensorView& scratch) {
  const int64_t size = a.shape()[0];
  const double start = StartOf(epsilon);
  ScratchParts parts(scratch);
  TESSERA_ASSIGN_OR_RETURN(const Square first, TakeSquare(parts, size));
  TESSERA_ASSIGN_OR_RETURN(const Square t, TakeSquare(parts, size));
  TESSERA_ASSIGN_OR_RETURN(TensorView next, parts.Take({size, size}));
  TESSERA_ASSIGN_OR_RETURN(TensorView other, parts.Take({size, size}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView column, parts.Take({size, 1}));
  TensorView m = first.all, h = root;
  TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Copy{a, m}));
  TESSERA_ASSIGN_OR_RETURN(const MatrixNorm norm, NormOf(ops, m, t.all, parts));
  TESSERA_RETURN_IF_ERROR(ScaleBy(ops, norm.inverse, m));
  TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Scale{start, m}));
  TESSERA_RETURN_IF_ERROR(AddToDiagonal(ops, start * epsilon, column, first));
  const int iterations = InverseRootIterations(epsilon);
  for (int i = 0; i < iterations; ++i) {
    TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Copy{m, t.all}));
    TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Scale{-0.25, t.all}));
    TESSERA_RETURN_IF_ERROR(AddToDiagonal(ops, 1.25, column, t));
    if (i == 0) {
      TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Copy{t.all, h}));
      TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Scale{std::pow(start, 0.25), h}));
    } else {
      TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Gemm{{}, h, t.all, other}));
      std::swap(h, other);
    }
    if (i + 1 == iterations) break;
    TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Gemm{{}, t.all, t.all, next}));
    TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Gemm{{}, next, next, other}));
    TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Gemm{{}, other, m, next}));
    std::swap(m, next);
  }
  return h.data() == root.data() ? absl::OkStatus()
                                 : ops.Run(tp::op::Copy{h, root});
}

}  // namespace tessera::train
