// Gemm of ops/ops.h on the CPU, by OpenBLAS. bf16 is converted to f32 in panels
// of at most 16 MiB, multiplied and added up in f32, and rounded once. The
// stride of rows is at least their length, and no size exceeds 2^31 - 1; c does
// not overlap a or b. A factor whose alpha is 0 does not count, be it NaN.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_GEMM_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_GEMM_H_

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::cpu {

absl::Status Gemm(const GemmOptions& options, const ConstTensorView& a,
                  const ConstTensorView& b, const TensorView& c);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_GEMM_H_
