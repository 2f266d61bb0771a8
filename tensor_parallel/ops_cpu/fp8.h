// The operations on fp8 of ops/ops.h on the CPU, on one thread; OpenBLAS
// computes the products in f32. The callers check the operands.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_FP8_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_FP8_H_

#include <cstdint>

#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::cpu {

void CastTranspose(const ConstTensorView& x, const ConstTensorView& scale,
                   const TensorView& amax, const TensorView& y,
                   const TensorView& transposed);

void UpdateScales(int margin, const ConstTensorView& largest,
                  const TensorView& amax, const TensorView& history,
                  const TensorView& scale, const TensorView& inverse);

// The values of `rows` rows of `n` elements of an fp8 `dtype`.
void DecodeFp8Rows(DType dtype, int64_t rows, int64_t n, const std::byte* from,
                   int64_t from_stride, float* to, int64_t to_stride);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_FP8_H_
