// ConvertFloats: base's Convert, vectorised between f32 and the 16-bit floats.
// Also HasInfinity.
//
//   TESSERA_RETURN_IF_ERROR(
//       ConvertFloats(DType::kF32, values, DType::kF16, halves));
//
// Internal to offload/codec. Results are bit-identical to Convert for every
// input (including NaN payloads, subnormals and ties) on every instruction set;
// tests compare them. Highway's F16C and AVX-512 are 1.9 to 4 times as fast as
// Convert, which cannot use them because base depends on no vector library. All
// other pairs of types, and the ends of arrays, use Convert.
#ifndef TESSERA_OFFLOAD_CODEC_HALF_CONVERSION_H_
#define TESSERA_OFFLOAD_CODEC_HALF_CONVERSION_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "base/dtype/convert.h"
#include "base/dtype/dtype.h"

namespace tessera::offload {

// Has the contract of Convert, for any pair of types. Spans need not be
// aligned.
absl::Status ConvertFloats(
    DType from, std::span<const std::byte> source, DType to,
    std::span<std::byte> target,
    FloatOverflow overflow = FloatOverflow::kInfinityOrNan);

// Returns whether any of `halves`, elements of f16 or bf16, is an infinity.
bool HasInfinity(DType half, std::span<const std::byte> halves);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_HALF_CONVERSION_H_
