// Double quantisation: the scales of up to 256 blocks in 8 bits each.
//
//   ScaleGroup group = QuantizeScales(scales, codes);
//   DequantizeScales(group, codes, scales);
//
// Internal to offload/codec. Scales are held as their difference from the
// group's mean, in steps of 1/127 of the largest difference, to the nearest
// one, ties to even. In double arithmetic, one after the other: the same bits
// everywhere.
//
// Dettmers et al., arXiv 2305.14314, section 3, "Double Quantization", with
// 8-bit integers instead of 8-bit floats.
#ifndef TESSERA_OFFLOAD_CODEC_SCALE_GROUP_H_
#define TESSERA_OFFLOAD_CODEC_SCALE_GROUP_H_

#include <cstdint>
#include <span>

namespace tessera::offload {

inline constexpr int64_t kScalesOfGroup = 256;

struct ScaleGroup {
  float mean = 0;
  float step = 0;
};

// One code for each scale. At least one scale; all finite and not negative.
ScaleGroup QuantizeScales(std::span<const float> scales,
                          std::span<int8_t> codes);

// Finite and not negative whatever the codes, where mean and step are. Within
// 1/254 of the group's largest scale of what QuantizeScales was given.
void DequantizeScales(ScaleGroup group, std::span<const int8_t> codes,
                      std::span<float> scales);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_SCALE_GROUP_H_
