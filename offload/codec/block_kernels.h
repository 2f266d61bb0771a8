// The inner loops of the block-wise quantisers: whole blocks of floats to codes
// and back.
//
//   LargestMagnitudes(values, blocks, kInt8Block, scales);
//   QuantizeInt8(values, blocks, scales, codes);
//
// For offload/codec and zero3/state. By the instruction set that Highway
// chooses; every operation is one that IEEE 754 rounds in one way, and none is
// fused, so that results are the same bits on all. Floats are aligned as
// floats, nothing else needs to be.
#ifndef TESSERA_OFFLOAD_CODEC_BLOCK_KERNELS_H_
#define TESSERA_OFFLOAD_CODEC_BLOCK_KERNELS_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::offload {

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

// largest[b] is the largest magnitude of values[b * block .. (b + 1) * block);
// where there is an infinity or a NaN, one of them. `block` is a multiple of
// 64.
void LargestMagnitudes(const float* values, size_t blocks, size_t block,
                       float* largest);

// codes[i] is values[i] * 127 / scales[i / kInt8Block] to the nearest integer,
// ties to even. No magnitude is larger than its scale, which is finite.
void QuantizeInt8(const float* values, size_t blocks, const float* scales,
                  int8_t* codes);
// codes[i] * scale / 127; the scale itself for 127.
void DequantizeInt8(const int8_t* codes, size_t blocks, const float* scales,
                    float* values);

// The level nearest to values[i] / scales[i / kNf4Block], of two equally near
// the lower. Byte j of a block has the codes of its elements j (low bits) and
// j + 32. Scales are finite and not negative; a larger magnitude than the scale
// becomes level -1 or 1.
void QuantizeNf4(const float* values, size_t blocks, const float* scales,
                 uint8_t* packed);
void DequantizeNf4(const uint8_t* packed, size_t blocks, const float* scales,
                   float* values);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_BLOCK_KERNELS_H_
