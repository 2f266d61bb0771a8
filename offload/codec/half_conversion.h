// ConvertFloats: base's Convert, faster between f32 and the 16-bit floats; and
// what has become infinite by it.
//
//   TESSERA_RETURN_IF_ERROR(
//       ConvertFloats(DType::kF32, values, DType::kF16, halves));
//
// Internal to offload/codec. The bits are those of Convert for every input (NaN
// payloads, subnormals and ties included) and every instruction set; tests
// compare them. Processors with AVX2 convert f16 by F16C, which base cannot
// reach: it depends on no library of vectors.
#ifndef TESSERA_OFFLOAD_CODEC_HALF_CONVERSION_H_
#define TESSERA_OFFLOAD_CODEC_HALF_CONVERSION_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "base/dtype/convert.h"
#include "base/dtype/dtype.h"

namespace tessera::offload {

// As Convert, for any pair of types. Spans need not be aligned.
absl::Status ConvertFloats(
    DType from, std::span<const std::byte> source, DType to,
    std::span<std::byte> target,
    FloatOverflow overflow = FloatOverflow::kInfinityOrNan);

// Whether any of `halves`, elements of f16 or bf16, is an infinity.
bool HasInfinity(DType half, std::span<const std::byte> halves);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_HALF_CONVERSION_H_
