#include "tools/train/model/matrix_norm.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

// Added to mean squares, so that zeros have a finite inverse; a normal number
// of f32.
constexpr double kEpsilon = 1e-37;

// dots[0] = the sum of a[i] b[i]. RowDots expects [rows, heads, n].
absl::Status Dot(tp::Ops& ops, const TensorView& a, const TensorView& b,
                 const TensorView& dot) {
  const int64_t n = a.element_count();
  TESSERA_ASSIGN_OR_RETURN(const TensorView a_row, a.Reshape({{1, 1, n}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView b_row, b.Reshape({{1, 1, n}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView dots, dot.Reshape({{1, 1}}));
  return ops.Run(tp::op::RowDots{a_row, b_row, dots});
}

}  // namespace

absl::StatusOr<TensorView> ScratchParts::Take(
    std::initializer_list<int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  TESSERA_ASSIGN_OR_RETURN(const TensorView part,
                           all_.Narrow(0, taken_, elements));
  taken_ += Rounded(elements);
  return part.Reshape(shape);
}

int64_t NormElements(int64_t rows, int64_t columns) {
  return 3 * ScratchParts::Rounded(rows) +
         ScratchParts::Rounded(std::max(rows, columns)) +
         2 * ScratchParts::Rounded(1);
}

// RmsNorm and RowDots give lengths[i] = sum_j x_ij^2 / rms(row i) = columns *
// rms(row i), whose root mean square is that of x times sqrt(columns rows).
absl::StatusOr<MatrixNorm> NormOf(tp::Ops& ops, const TensorView& x,
                                  const TensorView& work, ScratchParts& parts) {
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  TESSERA_ASSIGN_OR_RETURN(const TensorView ones,
                           parts.Take({std::max(rows, columns)}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView inverses, parts.Take({rows}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView lengths, parts.Take({rows}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView unit_lengths, parts.Take({rows}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView inverse, parts.Take({1}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView norm, parts.Take({1}));
  TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Fill{1, ones}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView of_row, ones.Narrow(0, 0, columns));
  TESSERA_ASSIGN_OR_RETURN(const TensorView of_column, ones.Narrow(0, 0, rows));
  TESSERA_RETURN_IF_ERROR(
      ops.Run(tp::op::RmsNorm{kEpsilon, x, of_row, work, inverses}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView x_heads,
                           x.Reshape({{rows, 1, columns}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView work_heads,
                           work.Reshape({{rows, 1, columns}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView length_heads,
                           lengths.Reshape({{rows, 1}}));
  TESSERA_RETURN_IF_ERROR(
      ops.Run(tp::op::RowDots{work_heads, x_heads, length_heads}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView one_row,
                           lengths.Reshape({{1, rows}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView one_unit_row,
                           unit_lengths.Reshape({{1, rows}}));
  TESSERA_RETURN_IF_ERROR(ops.Run(
      tp::op::RmsNorm{kEpsilon, one_row, of_column, one_unit_row, inverse}));
  TESSERA_RETURN_IF_ERROR(Dot(ops, unit_lengths, lengths, norm));
  const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
  TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Scale{std::sqrt(n / m), inverse}));
  TESSERA_RETURN_IF_ERROR(ops.Run(tp::op::Scale{1 / std::sqrt(m * n), norm}));
  return MatrixNorm{norm, inverse};
}

absl::Status ScaleBy(tp::Ops& ops, const TensorView& factor,
                     const TensorView& x) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView flat,
                           x.Reshape({{1, x.element_count()}}));
  return ops.Run(tp::op::ScaleRows{factor, flat, flat});
}

}  // namespace tessera::train
