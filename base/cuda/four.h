// Vector loads and stores in kernels. A Pack holds consecutive elements, which
// a thread reads and writes with accesses of up to 16 bytes. Four is a Pack of
// four, accessed element by element if fewer remain or the address is not
// aligned.
//
//   float x[4] = {};
//   LoadFour(values + at, count - at, x);   // BF16 values, for example.
//   ...
//   StoreFour(x, values + at, count - at);
//
// Values are float or double; elements are float, double, BF16 or F16. Loads
// widen exactly, and stores round to nearest even. After Canonical a NaN has
// the same bits as on the CPU.
#ifndef TESSERA_BASE_CUDA_FOUR_H_
#define TESSERA_BASE_CUDA_FOUR_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/cuda/kernel.h"
#include "base/dtype/small_float.h"

namespace tessera::TESSERA_KERNELS {

template <typename T, int count>
struct alignas(count * sizeof(T) < 16 ? count * sizeof(T) : 16) Pack {
  T values[count];
};

template <typename T>
using Four = Pack<T, 4>;

// Replaces every NaN by the same one, since processors and devices differ.
template <typename V>
__device__ inline V Canonical(V x) {
  return x != x ? std::numeric_limits<V>::quiet_NaN() : x;
}

__device__ inline float Widened(float x) { return x; }
__device__ inline double Widened(double x) { return x; }
__device__ inline float Widened(BF16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits()) << 16);
}
__device__ inline float Widened(F16 x) { return static_cast<float>(x); }

template <typename T, typename V>
__device__ inline T Narrowed(V x) {
  if constexpr (std::is_same_v<T, BF16>) {
    // Cheaper than BF16(x), but a NaN must be the canonical one.
    const auto rounded =
        float_format_internal::RoundNormal<BF16::Format, float>(
            std::bit_cast<int32_t>(x));
    return BF16::FromBits(static_cast<uint16_t>(rounded >> 16));
  } else {
    return static_cast<T>(x);
  }
}

// True if elements [0, 4) can be accessed together.
template <typename T>
__device__ inline bool IsWhole(const T* at, int64_t count) {
  return count >= 4 && reinterpret_cast<uintptr_t>(at) % alignof(Four<T>) == 0;
}

// The first min(count, 4) elements, which may be none.
template <typename T>
__device__ inline Four<T> LoadElements(const T* from, int64_t count) {
  if (IsWhole(from, count)) return *reinterpret_cast<const Four<T>*>(from);
  Four<T> four = {};
  for (int i = 0; i < 4; ++i) {
    if (i < count) four.values[i] = from[i];
  }
  return four;
}
template <typename T>
__device__ inline void StoreElements(const Four<T>& four, T* to,
                                     int64_t count) {
  if (IsWhole(to, count)) {
    *reinterpret_cast<Four<T>*>(to) = four;
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (i < count) to[i] = four.values[i];
  }
}

// Values past the last element are 0.
template <typename T, typename V>
__device__ inline void LoadFour(const T* from, int64_t count, V (&values)[4]) {
  const Four<T> four = LoadElements(from, count);
  for (int i = 0; i < 4; ++i) values[i] = Widened(four.values[i]);
}
template <typename T, typename V>
__device__ inline void StoreFour(const V (&values)[4], T* to, int64_t count) {
  Four<T> four;
  for (int i = 0; i < 4; ++i) four.values[i] = Narrowed<T>(values[i]);
  StoreElements(four, to, count);
}

}  // namespace tessera::TESSERA_KERNELS

#endif  // TESSERA_BASE_CUDA_FOUR_H_
