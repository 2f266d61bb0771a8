// ScaleMatrix: c = beta c, the result of a product whose factors are empty.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_MATRIX_SCALE_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_MATRIX_SCALE_H_

#include <cstdint>

#include "base/cuda/stream.h"
#include "base/dtype/dtype.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

// c = beta c over `rows` rows of `columns` elements, `stride` elements apart;
// if beta is 0, c is set to zeros without being read. c is f64, f32, bf16 or
// f16.
void LaunchScaleMatrix(KernelStream stream, double beta, DType dtype,
                       int64_t rows, int64_t columns, int64_t stride, void* c);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_MATRIX_SCALE_H_
