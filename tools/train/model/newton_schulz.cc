#include "tools/train/model/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

constexpr double kA = 3.4445, kB = -4.775, kC = 2.0315;
constexpr int kIterations = 5;
// Added to the mean square of a row, so that rows of zeros remain finite.
constexpr double kEpsilon = 1e-30;

// Parts of the scratch vector begin at multiples of 64 bytes.
constexpr int64_t kAligned = 16;
int64_t RoundedUp(int64_t elements) {
  return (elements + kAligned - 1) / kAligned * kAligned;
}

class Parts {
 public:
  explicit Parts(const TensorView& all) : all_(all) {}

  absl::StatusOr<TensorView> Take(std::initializer_list<int64_t> shape) {
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    TESSERA_ASSIGN_OR_RETURN(const TensorView part,
                             all_.Narrow(0, taken_, elements));
    taken_ += RoundedUp(elements);
    return part.Reshape(shape);
  }

 private:
  const TensorView all_;
  int64_t taken_ = 0;
};

// Divides x by its Frobenius norm, on the device. RmsNorm and RowDots give
// lengths[i] = sum_j x_ij^2 / rms(row i). The inverse root mean square of these
// lengths is the inverse norm up to a factor that depends on the sizes.
// `normalised` has the shape of x.
absl::Status Normalise(tp::Ops& ops, const TensorView& x,
                       const TensorView& normalised, Parts& parts) {
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  TESSERA_ASSIGN_OR_RETURN(const TensorView ones,
                           parts.Take({std::max(rows, columns)}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView inverses, parts.Take({rows}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView lengths, parts.Take({rows}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView unit_lengths, parts.Take({rows}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView inverse, parts.Take({1}));
  TESSERA_RETURN_IF_ERROR(ops.Run(tensor_parallel::op::Fill{1, ones}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView of_row, ones.Narrow(0, 0, columns));
  TESSERA_ASSIGN_OR_RETURN(const TensorView of_column, ones.Narrow(0, 0, rows));
  TESSERA_RETURN_IF_ERROR(ops.Run(
      tensor_parallel::op::RmsNorm{kEpsilon, x, of_row, normalised, inverses}));
  // RowDots expects [rows, heads, columns] and [rows, heads]: one head here.
  TESSERA_ASSIGN_OR_RETURN(const TensorView x_heads,
                           x.Reshape({{rows, 1, columns}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView normalised_heads,
                           normalised.Reshape({{rows, 1, columns}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView length_heads,
                           lengths.Reshape({{rows, 1}}));
  TESSERA_RETURN_IF_ERROR(ops.Run(
      tensor_parallel::op::RowDots{normalised_heads, x_heads, length_heads}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView one_row,
                           lengths.Reshape({{1, rows}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView one_unit_row,
                           unit_lengths.Reshape({{1, rows}}));
  TESSERA_RETURN_IF_ERROR(ops.Run(tensor_parallel::op::RmsNorm{
      kEpsilon, one_row, of_column, one_unit_row, inverse}));
  // lengths[i] = columns * rms(row i), so that 1 / inverse is columns times the
  // root mean square of x.
  TESSERA_RETURN_IF_ERROR(ops.Run(tensor_parallel::op::Scale{
      std::sqrt(static_cast<double>(columns) / static_cast<double>(rows)),
      inverse}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView flat,
                           x.Reshape({{1, rows * columns}}));
  return ops.Run(tensor_parallel::op::ScaleRows{inverse, flat, flat});
}

}  // namespace

int64_t NewtonSchulzElements(int64_t rows, int64_t columns) {
  const int64_t smaller = std::min(rows, columns);
  return 2 * RoundedUp(smaller * smaller) + 3 * RoundedUp(rows) +
         RoundedUp(std::max(rows, columns)) + RoundedUp(1);
}

absl::StatusOr<TensorView> Orthogonalise(tp::Ops& ops, TensorView x,
                                         TensorView other, TensorView scratch) {
  const bool is_wide = x.shape()[0] <= x.shape()[1];
  const int64_t smaller = std::min(x.shape()[0], x.shape()[1]);
  Parts parts(scratch);
  TESSERA_ASSIGN_OR_RETURN(const TensorView gram,
                           parts.Take({smaller, smaller}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView factor,
                           parts.Take({smaller, smaller}));
  TESSERA_RETURN_IF_ERROR(Normalise(ops, x, other, parts));
  for (int i = 0; i < kIterations; ++i) {
    TESSERA_RETURN_IF_ERROR(ops.Run(tensor_parallel::op::Gemm{
        {.transpose_a = !is_wide, .transpose_b = is_wide}, x, x, gram}));
    TESSERA_RETURN_IF_ERROR(ops.Run(tensor_parallel::op::Copy{gram, factor}));
    TESSERA_RETURN_IF_ERROR(ops.Run(tensor_parallel::op::Gemm{
        {.alpha = kC, .beta = kB}, gram, gram, factor}));
    TESSERA_RETURN_IF_ERROR(ops.Run(tensor_parallel::op::Copy{x, other}));
    TESSERA_RETURN_IF_ERROR(is_wide ? ops.Run(tensor_parallel::op::Gemm{
                                          {.beta = kA}, factor, x, other})
                                    : ops.Run(tensor_parallel::op::Gemm{
                                          {.beta = kA}, x, factor, other}));
    std::swap(x, other);
  }
  return x;
}

}  // namespace tessera::train
