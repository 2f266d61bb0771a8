// Encodes floating-point arrays as blocks of 8-bit integers, for messages.
//
//   std::vector<std::byte> message(Int8Bytes(count));
//   TESSERA_RETURN_IF_ERROR(EncodeInt8(dtype, values, message));
//   ... send it ...
//   TESSERA_RETURN_IF_ERROR(DecodeInt8(message, dtype, values));
//
// An encoding has an f32 scale for every 128 elements, which is the largest
// magnitude of the block, followed by one code per element: 1.03 bytes per
// element instead of the 4 of f32. Scales and codes are those of the codec
// "int8" (offload/codec), without its header. |decoded - value| <= scale *
// kInt8Error, and rounding to a narrower dtype adds its own error. All elements
// of a block with an infinity or a NaN become NaN, so that an overflow in
// gradients is still detected.
//
// This is the block-wise quantisation of ZeRO++, arXiv 2306.10209, section 4.1.
// The bits are the same on every instruction set.
#ifndef TESSERA_ZERO3_STATE_INT8_BLOCKS_H_
#define TESSERA_ZERO3_STATE_INT8_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "offload/codec/block_kernels.h"

namespace tessera::zero3 {

inline constexpr int64_t kInt8BlockElements = offload::kInt8Block;

// Half a step of 1/127 and four roundings in f32.
inline constexpr double kInt8Error = 0.5 / 127 + 0x1p-21;

// Bytes of an encoding: a multiple of 4, so that encodings may be concatenated.
constexpr int64_t Int8Bytes(int64_t elements) {
  const int64_t blocks =
      (elements + kInt8BlockElements - 1) / kInt8BlockElements;
  return 4 * blocks + (elements + 3) / 4 * 4;
}

// True for the types that can be encoded: f32, bf16 and f16.
constexpr bool HasInt8Form(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// InvalidArgument if the dtype has no int8 form, or if `encoded` does not have
// the size and alignment of an encoding of `value_bytes` bytes of that dtype.
// Does not read `encoded`.
absl::Status CheckInt8Sizes(DType dtype, size_t value_bytes,
                            std::span<const std::byte> encoded);

// Encodes values.size() / SizeInBytes(dtype) elements. `encoded` is aligned to
// 4 and has Int8Bytes(elements) bytes, here and below. InvalidArgument if
// sizes, alignment or the dtype are invalid.
absl::Status EncodeInt8(DType dtype, std::span<const std::byte> values,
                        std::span<std::byte> encoded);

absl::Status DecodeInt8(std::span<const std::byte> encoded, DType dtype,
                        std::span<std::byte> values);

// Adds `sources`, encodings with the same number of elements, in f32 and in
// order, and divides by `divisor`. SumInt8Encoded encodes the sum again.
absl::Status SumInt8(std::span<const std::span<const std::byte>> sources,
                     float divisor, DType dtype, std::span<std::byte> values);
absl::Status SumInt8Encoded(std::span<const std::span<const std::byte>> sources,
                            int64_t elements, std::span<std::byte> encoded);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_INT8_BLOCKS_H_
