#include "tools/train/model/newton_schulz.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "tools/train/model/matrix_norm.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

constexpr double kA = 3.4445, kB = -4.775, kC = 2.0315;
constexpr int kIterations = 5;

}  // namespace

int64_t NewtonSchulzElements(int64_t rows, int64_t columns) {
  const int64_t smaller = std::min(rows, columns);
  return 2 * ScratchParts::Rounded(smaller * smaller) +
         NormElements(rows, columns);
}

absl::StatusOr<TensorView> Orthogonalise(tp::Ops& ops, TensorView x,
                                         TensorView other, TensorView scratch) {
  const bool is_wide = x.shape()[0] <= x.shape()[1];
  const int64_t smaller = std::min(x.shape()[0], x.shape()[1]);
  ScratchParts parts(scratch);
  TESSERA_ASSIGN_OR_RETURN(const TensorView gram,
                           parts.Take({smaller, smaller}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView factor,
                           parts.Take({smaller, smaller}));
  TESSERA_ASSIGN_OR_RETURN(const MatrixNorm norm, NormOf(ops, x, other, parts));
  TESSERA_RETURN_IF_ERROR(ScaleBy(ops, norm.inverse, x));
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
