#include <type_traits>

#include "base/cuda/kernel.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/dtype/small_float.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"
#include "tensor_parallel/ops_cuda/matrix_scale.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

using ::tessera::TESSERA_KERNELS::Launch;

template <typename T>
__global__ void ScaleMatrixKernel(double beta, int64_t rows, int64_t columns,
                                  int64_t stride, T* c) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * columns) return;
  T& element = c[i / columns * stride + i % columns];
  element = beta == 0 ? ConvertValue<T>(StatisticOf<T>{0})
                      : ConvertValue<T>(static_cast<StatisticOf<T>>(beta) *
                                        ConvertValue<StatisticOf<T>>(element));
}

}  // namespace

void LaunchScaleMatrix(KernelStream stream, double beta, DType dtype,
                       int64_t rows, int64_t columns, int64_t stride, void* c) {
  if (beta == 1) return;
  constexpr int kThreads = 256;
  const auto blocks =
      static_cast<unsigned>((rows * columns + kThreads - 1) / kThreads);
  const auto launch = [&](auto* elements) {
    using T = std::remove_pointer_t<decltype(elements)>;
    Launch(ScaleMatrixKernel<T>, blocks, kThreads, /*dynamic_shared=*/0, stream,
           beta, rows, columns, stride, elements);
  };
  if (dtype == DType::kF64) launch(static_cast<double*>(c));
  if (dtype == DType::kF32) launch(static_cast<float*>(c));
  if (dtype == DType::kBF16) launch(static_cast<BF16*>(c));
  if (dtype == DType::kF16) launch(static_cast<F16*>(c));
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
