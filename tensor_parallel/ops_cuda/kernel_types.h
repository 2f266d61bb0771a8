// Types of operands in kernels: statistics, packs of elements, and the
// conversion of a DType to a kernel's template arguments.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_KERNEL_TYPES_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_KERNEL_TYPES_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda/four.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

// The type in which elements of T are summed (ops.h).
template <typename T>
using StatisticOf =
    std::conditional_t<std::is_same_v<T, double>, double, float>;

using ::tessera::TESSERA_KERNELS::Pack;

// The number of elements in the widest access, 16 bytes.
template <typename T>
inline constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

template <typename T>
const T* DataOf(const ConstTensorView& view) {
  return reinterpret_cast<const T*>(view.data());
}
template <typename T>
T* DataOf(const TensorView& view) {
  return reinterpret_cast<T*>(view.data());
}

// Calls `functor(std::type_identity<T>{})`, which returns a status, with the
// element type of a computed tensor: f64, f32, bf16 or f16.
template <typename Functor>
absl::Status ForComputedType(DType dtype, const Functor& functor) {
  if (dtype == DType::kF64) return functor(std::type_identity<double>{});
  if (dtype == DType::kF32) return functor(std::type_identity<float>{});
  if (dtype == DType::kBF16) return functor(std::type_identity<BF16>{});
  if (dtype == DType::kF16) return functor(std::type_identity<F16>{});
  return absl::InvalidArgumentError(
      absl::StrCat("kernels compute in f64, f32, bf16 and f16, not in ",
                   DTypeName(dtype), "."));
}

template <typename S>
inline constexpr S kMinusInfinity = -std::numeric_limits<S>::infinity();

TESSERA_HOST_DEVICE inline float Exp(float x) { return ::expf(x); }
TESSERA_HOST_DEVICE inline double Exp(double x) { return ::exp(x); }
TESSERA_HOST_DEVICE inline float Log(float x) { return ::logf(x); }
TESSERA_HOST_DEVICE inline double Log(double x) { return ::log(x); }

TESSERA_HOST_DEVICE inline float Tanh(float x) { return ::tanhf(x); }
TESSERA_HOST_DEVICE inline double Tanh(double x) { return ::tanh(x); }

// a * b + c, rounded once on the GPU and twice in emulation.
template <typename S>
TESSERA_HOST_DEVICE inline S MultiplyAdd(S a, S b, S c) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<S, float>) {
    return __fmaf_rn(a, b, c);
  } else {
    return __fma_rn(a, b, c);
  }
#else
  return a * b + c;
#endif
}

// The larger value; NaN if either is NaN.
template <typename S>
TESSERA_HOST_DEVICE inline S Larger(S a, S b) {
  return a > b || a != a ? a : b;
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_KERNEL_TYPES_H_
