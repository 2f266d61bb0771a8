// Whether floats are finite, by their bits. Internal to offload/codec.
#ifndef TESSERA_OFFLOAD_CODEC_FINITE_H_
#define TESSERA_OFFLOAD_CODEC_FINITE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

namespace tessera::offload {

inline constexpr std::string_view kFiniteAlone =
    "it holds finite values within the range of float alone; use lossless";

inline bool IsFinite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7fffffff) < 0x7f800000;
}
inline bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), IsFinite);
}

// Whether all are finite and none has a sign.
inline bool AllScales(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) {
    return std::bit_cast<uint32_t>(value) < 0x7f800000;
  });
}

// `count` where all are finite.
inline int64_t FirstNotFinite(const float* values, int64_t count) {
  return std::find_if_not(values, values + count, IsFinite) - values;
}

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_FINITE_H_
