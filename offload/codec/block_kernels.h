// Kernels of the block-wise quantisers, which convert whole blocks of floats to
// codes and back, for offload/codec and zero3/state.
//
//   LargestMagnitudes(values, blocks, kInt8Block, scales);
//   QuantizeInt8(values, blocks, scales, codes);
//
// Highway chooses the instruction set at run time. Results are bit-identical on
// all of them: every operation is rounded as IEEE 754 specifies, and none is
// fused. Arrays of floats must be aligned for float; others need no alignment.
#ifndef TESSERA_OFFLOAD_CODEC_BLOCK_KERNELS_H_
#define TESSERA_OFFLOAD_CODEC_BLOCK_KERNELS_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::offload {

// The header of an encoding (checked_codec.h), before the scales and codes.
inline constexpr int64_t kCodecHeaderBytes = 16;

inline constexpr size_t kInt8Block = 128;
inline constexpr size_t kNf4Block = 64;
inline constexpr size_t kNf4BlockBytes = kNf4Block / 2;

// The levels of 4-bit NormalFloat: Dettmers et al., "QLoRA: Efficient
// Finetuning of Quantized LLMs", arXiv 2305.14314, appendix E.
inline constexpr std::array<float, 16> kNf4Levels = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// Returns the largest float <= `middle`, the midpoint of two levels: a float is
// nearer to the upper level if and only if it is larger than the result.
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

// largest[b] is the largest magnitude of values[b * block .. (b + 1) * block);
// infinity or NaN if the block has one. `block` is a multiple of 64.
void LargestMagnitudes(const float* values, size_t blocks, size_t block,
                       float* largest);

// codes[i] is values[i] * 127 / scales[i / kInt8Block], rounded to the nearest
// integer, ties to even. Scales are finite; no magnitude is larger than its
// scale.
void QuantizeInt8(const float* values, size_t blocks, const float* scales,
                  int8_t* codes);
// values[i] is codes[i] * scale / 127; exactly the scale for code 127.
void DequantizeInt8(const int8_t* codes, size_t blocks, const float* scales,
                    float* values);

// A code is the level nearest to values[i] / scales[i / kNf4Block], the lower
// of two equally near. Byte j of a block has the codes of its elements j (low
// bits) and j + 32. Scales are finite and not negative; magnitudes larger than
// the scale become level -1 or 1.
void QuantizeNf4(const float* values, size_t blocks, const float* scales,
                 uint8_t* packed);
void DequantizeNf4(const uint8_t* packed, size_t blocks, const float* scales,
                   float* values);

// Double quantisation: the scales of up to 256 blocks in 8 bits each.
//
//   ScaleGroup group = QuantizeScales(scales, codes);
//   DequantizeScales(group, codes, scales);
//
// Scales are stored as their difference from the group's mean, in steps of
// 1/127 of the largest difference, rounded to nearest, ties to even. Arithmetic
// in double precision in a fixed order makes the result the same on every
// machine.
//
// Dettmers et al., arXiv 2305.14314, section 3, "Double Quantization", with
// 8-bit integers instead of 8-bit floats.
inline constexpr int64_t kScalesOfGroup = 256;

struct ScaleGroup {
  float mean = 0;
  float step = 0;
};

// Writes one code for each scale. Requires at least one scale; all must be
// finite and not negative.
ScaleGroup QuantizeScales(std::span<const float> scales,
                          std::span<int8_t> codes);

// If mean and step are finite and not negative, so are the results, for any
// codes. They are within 1/254 of the group's largest scale of QuantizeScales's
// input.
void DequantizeScales(ScaleGroup group, std::span<const int8_t> codes,
                      std::span<float> scales);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_BLOCK_KERNELS_H_
