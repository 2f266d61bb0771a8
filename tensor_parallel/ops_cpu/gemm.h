// Products of row-major matrices: Gemms uses the threads of a pool, Multiply
// the calling thread.
//
//   // c = q k^T, all [n, n]
//   Multiply<float>({.m = n, .n = n, .k = n}, 1, {q, n}, {k, n, true}, 0,
//                   {c, n});
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_GEMM_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_GEMM_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/os/thread_pool.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/kernels.h"

namespace tessera::tensor_parallel::cpu {

struct BlasShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// A matrix as it is stored, with `stride` elements from row to row. It may have
// a single row.
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

// The largest size and stride that OpenBLAS supports.
inline constexpr int64_t kLargestBlasSize = INT32_MAX;

// c = alpha op(a) op(b) + beta c, where op(a) is [m, k], op(b) [k, n], c [m,
// n]. If beta is 0, c is overwritten without being read. Sizes may be zero. No
// size or stride exceeds kLargestBlasSize; with several rows, the stride is at
// least their length. T is float or double (computed by OpenBLAS) or BF16 (as
// in Gemms).
template <typename T>
void Multiply(const BlasShape& shape, StatisticOf<T> alpha,
              const BlasFactor<T>& a, const BlasFactor<T>& b,
              StatisticOf<T> beta, const BlasResult<StatisticOf<T>>& c);

// FailedPrecondition if OpenBLAS multiplies incorrectly on this processor: some
// builds select kernels that their compiler could not build (0.3.34 for Arm's
// SME). Computed once.
const absl::Status& CheckBlas();

// Makes Multiply use only the calling thread from now on, in the whole process
// (OpenBLAS has no narrower setting). Calls from several threads run
// concurrently.
void UseOneBlasThread();

// GemmFp8 of ops/ops.h on the CPU: like Gemms for bf16 below; every product is
// exact.
void GemmFp8(ThreadPool& pool, const Fp8GemmOptions& options,
             const ConstTensorView& a, const ConstTensorView& a_inverse,
             const ConstTensorView& b, const ConstTensorView& b_inverse,
             const TensorView& c);

// Computes products of ops/ops.h on the CPU, by oneDNN if it is fast
// (onednn_gemm.h), otherwise by OpenBLAS, for which bf16 is converted to f32 in
// panels of at most 16 MiB. Sums are in f32 and rounded once. The stride of
// rows is at least their length, and no size exceeds 2^31 - 1; a c must not
// overlap any other matrix. If alpha is 0, a and b are not read. Threads
// compute tiles of the matrices c, whose sizes depend on the product alone, and
// not on the number of threads or the other products.
void Gemms(ThreadPool& pool, std::span<const op::Gemm> products);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_GEMM_H_
