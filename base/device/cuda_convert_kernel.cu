#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/device/cuda_convert_kernel.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 16;

// As many elements as the widest access of a thread holds of the larger type.
template <typename From, typename To>
constexpr int kPack = 16 / static_cast<int>(sizeof(From) > sizeof(To)
                                                ? sizeof(From)
                                                : sizeof(To));

template <typename T, int count>
struct alignas(sizeof(T) * count) Pack {
  T values[count];
};

template <typename From, typename To>
__device__ To ConvertOne(From value, FloatOverflow overflow) {
  if constexpr (IsFloating(kDTypeOf<To>)) {
    if (overflow == FloatOverflow::kSaturate) {
      return ConvertValue<To, FloatOverflow::kSaturate>(value);
    }
  }
  return ConvertValue<To, FloatOverflow::kInfinityOrNan>(value);
}

// Converts the first `packs` packs whole and the remaining elements one by one.
template <typename From, typename To>
__global__ void ConvertKernel(const From* __restrict__ source,
                              To* __restrict__ target, int64_t count,
                              int64_t packs, FloatOverflow overflow) {
  constexpr int kCount = kPack<From, To>;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const auto* in = reinterpret_cast<const Pack<From, kCount>*>(source);
  auto* out = reinterpret_cast<Pack<To, kCount>*>(target);
  for (int64_t i = first; i < packs; i += step) {
    const Pack<From, kCount> values = in[i];
    Pack<To, kCount> results;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      results.values[k] = ConvertOne<From, To>(values.values[k], overflow);
    }
    out[i] = results;
  }
  for (int64_t i = packs * kCount + first; i < count; i += step) {
    target[i] = ConvertOne<From, To>(source[i], overflow);
  }
}

template <typename From, typename To>
cudaError_t Launch(const void* source, void* target, int64_t count,
                   cudaStream_t stream, FloatOverflow overflow) {
  const auto addresses =
      reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target);
  const int64_t packs = addresses % 16 == 0 ? count / kPack<From, To> : 0;
  const int64_t steps = std::max(packs, count - packs * kPack<From, To>);
  const int64_t blocks =
      std::min(kMaxBlocks, (steps + kThreads - 1) / kThreads);
  ConvertKernel<From, To>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
          static_cast<const From*>(source), static_cast<To*>(target), count,
          packs, overflow);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchConvertKernel(DType from, const void* source, DType to,
                                void* target, int64_t count,
                                cudaStream_t stream, FloatOverflow overflow) {
  if (from == to) {
    return cudaMemcpyAsync(target, source,
                           static_cast<size_t>(count * SizeInBytes(from)),
                           cudaMemcpyDefault, stream);
  }
  return DispatchDType(from, [&]<typename From>(std::type_identity<From>) {
    return DispatchDType(to, [&]<typename To>(std::type_identity<To>) {
      return Launch<From, To>(source, target, count, stream, overflow);
    });
  });
}

}  // namespace tessera
