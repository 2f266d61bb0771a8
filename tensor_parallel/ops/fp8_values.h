// The arithmetic of operands in fp8, one value at a time, for the host and for
// kernels: what Ops::CastTranspose and Ops::UpdateScales (ops.h) compute.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_FP8_VALUES_H_
#define TESSERA_TENSOR_PARALLEL_OPS_FP8_VALUES_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/dtype/small_float.h"

namespace tessera::tensor_parallel {

// The pattern of every NaN in fp8: processors and devices choose different
// ones.
inline constexpr uint8_t kFp8Nan = 0x7f;

// `value` rounded to nearest even, saturated.
template <typename F8>
TESSERA_HOST_DEVICE inline F8 Fp8Of(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  if constexpr (std::is_same_v<F8, F8E4M3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(pair)
        : "f"(0.0f), "f"(value));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
        : "=h"(pair)
        : "f"(0.0f), "f"(value));
  }
  const auto bits = static_cast<uint8_t>(pair & 0xff);
#else
  const uint8_t bits =
      EncodeFloat<typename F8::Format, FloatOverflow::kSaturate>(value);
#endif
  return F8::FromBits(value != value ? kFp8Nan : bits);
}

// Bits of |value|, in the order of the values; a NaN is above infinity.
TESSERA_HOST_DEVICE inline uint32_t MagnitudeBits(float value) {
  constexpr uint32_t kNan = 0x7fc00000;
  return value != value ? kNan : std::bit_cast<uint32_t>(value) & 0x7fffffff;
}

// What a step adds to the history of an operand's largest magnitudes.
TESSERA_HOST_DEVICE inline float HistoryEntryOf(float amax) {
  constexpr uint32_t kInfinity = 0x7f800000;
  return MagnitudeBits(amax) < kInfinity ? amax : 0.0f;
}

// The scale for magnitudes up to `amax` > 0, and 1 / scale. `room` is 2^margin.
struct Fp8Scale {
  float scale;
  float inverse;
};
TESSERA_HOST_DEVICE inline Fp8Scale Fp8ScaleFor(float largest, float amax,
                                                float room) {
  constexpr float kMost = 0x1p100f;
  // The quotient of a tiny magnitude is infinite.
  const float quotient = largest / amax / room;
  const float scale = quotient < kMost ? quotient : kMost;
  return {scale, 1.0f / scale};
}

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_FP8_VALUES_H_
