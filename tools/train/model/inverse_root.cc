#include "tools/train/model/inverse_root.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "tools/train/model/matrix_norm.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

constexpr double kNewton = 1.25;

// The factor of M in T.
double SlopeOf(double a) { return std::pow(0.8, 4) * std::pow(a, 5) / 5; }

// The image of an eigenvalue of M.
double Image(double a, double m) { return m * std::pow(a - SlopeOf(a) * m, 4); }

// The factor with which the eigenvalues `least` and 1 have the same image, at
// most 1.5.
double FactorOf(double least) {
  // With larger factors T^4 cancels digits at eigenvalues near 1.
  double lower = kNewton, upper = 1.5;
  for (int i = 0; i < 50; ++i) {
    const double a = (lower + upper) / 2;
    (Image(a, least) < Image(a, 1) ? lower : upper) = a;
  }
  return lower;
}

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

std::vector<double> InverseRootFactors(double epsilon) {
  std::vector<double> factors;
  // One more iteration than to 1e-8 gives all digits of f64.
  for (double least = epsilon / (1 + epsilon); 1 - least > 1e-8;) {
    const double a = least < 0.9 ? FactorOf(least) : kNewton;
    least = std::min(Image(a, least), Image(a, 1));
    factors.push_back(a);
  }
  factors.push_back(kNewton);
  return factors;
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
  TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Scale{1 / (1 + epsilon), m}));
  TESSERA_RETURN_IF_ERROR(
      AddToDiagonal(ops, epsilon / (1 + epsilon), column, first));
  const std::vector<double> factors = InverseRootFactors(epsilon);
  for (size_t i = 0; i < factors.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Copy{m, t.all}));
    TESSERA_RETURN_IF_ERROR(
        ops.Run(tp::op::Scale{-SlopeOf(factors[i]), t.all}));
    TESSERA_RETURN_IF_ERROR(AddToDiagonal(ops, factors[i], column, t));
    if (i == 0) {
      TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Copy{t.all, h}));
      TESSERA_RETURN_IF_ERROR(
          ops.Run(tp::op::Scale{std::pow(1 + epsilon, -0.25), h}));
    } else {
      TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Gemm{{}, h, t.all, other}));
      std::swap(h, other);
    }
    if (i + 1 == factors.size()) break;
    TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Gemm{{}, t.all, t.all, next}));
    TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Gemm{{}, next, next, other}));
    TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Gemm{{}, other, m, next}));
    std::swap(m, next);
  }
  return h.data() == root.data() ? absl::OkStatus()
                                 : ops.Run(tp::op::Copy{h, root});
}

}  // namespace tessera::train
