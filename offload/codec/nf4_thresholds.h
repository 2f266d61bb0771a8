// The floats between NF4's levels. Internal to offload/codec.
#ifndef TESSERA_OFFLOAD_CODEC_NF4_THRESHOLDS_H_
#define TESSERA_OFFLOAD_CODEC_NF4_THRESHOLDS_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "offload/codec/block_kernels.h"

namespace tessera::offload {

// The largest float that is not above the middle of two levels: a float is
// nearer to the upper level exactly where it is larger.
constexpr float NotAbove(double middle) {
  const float rounded = static_cast<float>(middle);
  if (rounded <= middle) return rounded;
  const uint32_t bits = std::bit_cast<uint32_t>(rounded);
  return std::bit_cast<float>(rounded > 0 ? bits - 1 : bits + 1);
}

inline constexpr std::array<float, 15> kNf4Thresholds = [] {
  std::array<float, 15> thresholds = {};
  for (size_t i = 0; i < thresholds.size(); ++i) {
    thresholds[i] =
        NotAbove((double{kNf4Levels[i]} + double{kNf4Levels[i + 1]}) / 2);
  }
  return thresholds;
}();

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_NF4_THRESHOLDS_H_
