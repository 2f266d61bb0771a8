// OneDnnGemm: products of row-major matrices by oneDNN, which uses the
// processor's instructions for bf16 (AVX512-BF16, AMX).
//
//   if (!OneDnnGemm(options, a, b, c)) ...  // By other means.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ONEDNN_GEMM_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ONEDNN_GEMM_H_

#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::cpu {

// Computes Gemm of ops/ops.h for factors of bf16 on the calling thread, and
// returns true. Returns false, without side effects, if oneDNN is not built in,
// the processor has no instructions for products of bf16, or alpha is not 1.
// For f32 it returns false: oneDNN is faster than OpenBLAS for large products
// (1.05 to 1.09 times with AVX-512), but the memory that it keeps varies from
// run to run by more than predictions allow. Preconditions: those of Gemm in
// gemm.h, and no size is 0.
bool OneDnnGemm(const GemmOptions& options, const ConstTensorView& a,
                const ConstTensorView& b, const TensorView& c);

// True if bf16 products are faster than f32 products on this processor.
bool OneDnnMultipliesBF16();

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ONEDNN_GEMM_H_
