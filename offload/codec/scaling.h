// What a block's scale is multiplied and divided by. Internal to offload/codec.
//
// The inverse of a scale below 2^-126 overflows. Values and scale of a block
// whose scale is small are lifted by a power of two first, which is exact.
#ifndef TESSERA_OFFLOAD_CODEC_SCALING_H_
#define TESSERA_OFFLOAD_CODEC_SCALING_H_

#include <bit>
#include <cstdint>

namespace tessera::offload {

// 1, or 2^64 for a small scale that is not 0.
inline float LiftOf(float scale) {
  return scale != 0 && scale < 0x1p-64f ? 0x1p64f : 1.0f;
}

// value * lift * inverse is about value * top / scale; 0 for a scale of 0.
struct Reciprocal {
  float lift;
  float inverse;
};
inline Reciprocal ReciprocalOf(float scale, float top) {
  const float lift = LiftOf(scale);
  return {lift, scale == 0 ? 0.0f : top / (scale * lift)};
}

// The smallest float near top / steps that times `steps` is at least `top`.
// `top` is finite, and 0 or normal.
inline float StepReaching(float top, float steps) {
  const float step = top / steps;
  return step * steps < top
             ? std::bit_cast<float>(std::bit_cast<uint32_t>(step) + 1)
             : step;
}

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_SCALING_H_
