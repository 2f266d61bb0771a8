// OneDnnGemm: products of row-major matrices by oneDNN, which uses the
// processor's instructions for bf16 (AVX512-BF16, AMX), and is faster than
// OpenBLAS for large products of f32 with AVX-512.
//
//   if (!OneDnnGemm(options, a, b, c)) ...  // By other means.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ONEDNN_GEMM_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ONEDNN_GEMM_H_

#include <cstdint>

#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::cpu {

// Computes Gemm of ops/ops.h for factors of bf16 or f32 on the calling thread,
// and returns true. Returns false, without side effects, if oneDNN is not built
// in, has no fast product for the operands, or alpha is not 1. Preconditions:
// those of Gemm in gemm.h, and no size is 0.
bool OneDnnGemm(const GemmOptions& options, const ConstTensorView& a,
                const ConstTensorView& b, const TensorView& c);

// True if bf16 products are faster than f32 products on this processor.
bool OneDnnMultipliesBF16();

// True if oneDNN is expected to be faster than OpenBLAS for products of f32 of
// m x k by k x n. On Zen 5 its rate is 1.09 (beta 0) and 1.05 (beta 1) times
// OpenBLAS 0.3.21's for the products of models of 10 and 125 million
// parameters; smaller products and those of few rows are slower.
bool OneDnnMultipliesF32(int64_t m, int64_t n, int64_t k);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ONEDNN_GEMM_H_
