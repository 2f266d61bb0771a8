#include "tensor_parallel/ops_cpu/blas.h"

#include <cblas.h>

#include <algorithm>
#include <cstdint>

namespace tessera::tensor_parallel::cpu {
namespace {

CBLAS_TRANSPOSE Transposition(bool transposed) {
  return transposed ? CblasTrans : CblasNoTrans;
}

// OpenBLAS wants a stride of at least a row even where there is one row only.
blasint Stride(int64_t stride, int64_t rows, int64_t columns) {
  const int64_t least = std::max<int64_t>(columns, 1);
  return static_cast<blasint>(rows > 1 ? std::max(stride, least) : least);
}

template <typename T>
blasint StrideOf(const BlasFactor<T>& x, int64_t rows, int64_t columns) {
  return x.transposed ? Stride(x.stride, columns, rows)
                      : Stride(x.stride, rows, columns);
}

template <typename T>
void ScaleMatrix(const BlasShape& shape, T beta, const BlasResult<T>& c) {
  for (int64_t i = 0; i < shape.m; ++i) {
    T* const row = c.data + i * c.stride;
    for (int64_t j = 0; j < shape.n; ++j) {
      row[j] = beta == 0 ? T{0} : row[j] * beta;
    }
  }
}

}  // namespace

template <typename T>
void Multiply(const BlasShape& shape, T alpha, const BlasFactor<T>& a,
              const BlasFactor<T>& b, T beta, const BlasResult<T>& c) {
  if (shape.m == 0 || shape.n == 0) return;
  if (shape.k == 0) return ScaleMatrix(shape, beta, c);
  const auto run = [&](auto gemm) {
    gemm(CblasRowMajor, Transposition(a.transposed),
         Transposition(b.transposed), static_cast<blasint>(shape.m),
         static_cast<blasint>(shape.n), static_cast<blasint>(shape.k), alpha,
         a.data, StrideOf(a, shape.m, shape.k), b.data,
         StrideOf(b, shape.k, shape.n), beta, c.data,
         Stride(c.stride, shape.m, shape.n));
  };
  if constexpr (sizeof(T) == sizeof(float)) {
    run(cblas_sgemm);
  } else {
    run(cblas_dgemm);
  }
}

template void Multiply(const BlasShape&, float, const BlasFactor<float>&,
                       const BlasFactor<float>&, float,
                       const BlasResult<float>&);
template void Multiply(const BlasShape&, double, const BlasFactor<double>&,
                       const BlasFactor<double>&, double,
                       const BlasResult<double>&);

void LimitBlasThreads(int threads) {
  if (openblas_get_num_threads() != threads) openblas_set_num_threads(threads);
}

int BlasThreads() { return openblas_get_num_threads(); }

}  // namespace tessera::tensor_parallel::cpu
