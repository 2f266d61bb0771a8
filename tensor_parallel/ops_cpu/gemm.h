// Multiply: products of row-major matrices by OpenBLAS, f32 and f64.
//
//   // c = q k^T, all [n, n]
//   Multiply<float>({.m = n, .n = n, .k = n}, 1, {q, n}, {k, n, true}, 0,
//                   {c, n});
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_GEMM_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_GEMM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::cpu {

struct BlasShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// A matrix as it is stored; `stride` elements from row to row, of which there
// may be one only.
template <typename T>
struct BlasFactor {
  const T* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};
template <typename T>
struct BlasResult {
  T* data = nullptr;
  int64_t stride = 0;
};

// The largest size and stride that OpenBLAS takes.
inline constexpr int64_t kLargestBlasSize = INT32_MAX;

// c = alpha op(a) op(b) + beta c, where op(a) is [m, k], op(b) [k, n], c [m,
// n]. If beta is 0 the contents of c are ignored. Sizes may be zero. No size or
// stride exceeds kLargestBlasSize; with several rows, the stride is at least
// their length.
template <typename T>
void Multiply(const BlasShape& shape, T alpha, const BlasFactor<T>& a,
              const BlasFactor<T>& b, T beta, const BlasResult<T>& c);

// How many threads OpenBLAS uses from now on, for every caller in the process:
// OpenBLAS knows no other way. Calls from several threads are safe, and with
// more than one thread wait for each other.
void LimitBlasThreads(int threads);
int BlasThreads();

// Gemm of ops/ops.h on the CPU, by OpenBLAS. bf16 is converted to f32 in panels
// of at most 16 MiB, multiplied and accumulated in f32, and rounded once. The
// stride of rows is at least their length, and no size exceeds 2^31 - 1; c must
// not overlap a or b. If alpha is 0, a and b are ignored, even NaNs.

absl::Status Gemm(const GemmOptions& options, const ConstTensorView& a,
                  const ConstTensorView& b, const TensorView& c);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_GEMM_H_
