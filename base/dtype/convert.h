// Convert: converts arrays of elements from one DType to another.
//
//   std::vector<float> weights = ...;
//   std::vector<BF16> half(weights.size());
//   TESSERA_RETURN_IF_ERROR(
//       Convert(DType::kF32, std::as_bytes(std::span(weights)), DType::kBF16,
//               std::as_writable_bytes(std::span(half))));
//
// base/dtype/convert_value.h defines the result for each value. Memory-bound: a
// conversion reads and writes each element once. Uses AVX2 if the processor has
// it, with the same results. Runs in the calling thread; several threads may
// convert parts of an array at once.
#ifndef TESSERA_BASE_DTYPE_CONVERT_H_
#define TESSERA_BASE_DTYPE_CONVERT_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"

namespace tessera {

// Converts source.size() / SizeInBytes(from) elements. Neither span needs to be
// aligned. InvalidArgument, with nothing written, if a dtype is not valid,
// `source` is not a whole number of elements, `target` does not have exactly
// the required size, or the two overlap.
absl::Status Convert(DType from, std::span<const std::byte> source, DType to,
                     std::span<std::byte> target,
                     FloatOverflow overflow = FloatOverflow::kInfinityOrNan);

// Performs only the checks of Convert; OK if the sizes match.
absl::Status CheckConvertSizes(DType from, size_t source_bytes, DType to,
                               size_t target_bytes);

}  // namespace tessera

#endif  // TESSERA_BASE_DTYPE_CONVERT_H_
