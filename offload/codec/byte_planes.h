// Byte planes: splits arrays of elements into one array for each byte of an
// element, and merges them again.
//
//   SplitPlanes(ShapeOf(DType::kBF16), values, count, planes);
//
// Elements are first rotated left, so that the exponent, whose bits repeat,
// fills a whole plane. In f32 and bf16 the sign moves below the mantissa, and
// the highest plane is the exponent. In f64 the sign and the three highest of
// the eleven exponent bits move, since they hardly differ between weights.
//
// Internal to offload/codec. Highway chooses the instruction set; the result is
// a permutation of bits and does not depend on it.
#ifndef TESSERA_OFFLOAD_CODEC_BYTE_PLANES_H_
#define TESSERA_OFFLOAD_CODEC_BYTE_PLANES_H_

#include <cstddef>

#include "base/dtype/dtype.h"

namespace tessera::offload {

struct PlaneShape {
  size_t planes;  // Bytes of an element: 1, 2, 4, 8.
  int rotation;   // Bits rotated left: at most 4; 0 if planes is 1.
};

constexpr PlaneShape ShapeOf(DType dtype) {
  const size_t bytes = static_cast<size_t>(SizeInBytes(dtype));
  if (!IsFloating(dtype) || bytes == 1) return {bytes, 0};
  return {bytes, dtype == DType::kF64 ? 4 : 1};
}

// planes[p][i] is byte p, from the lowest, of element i of `values` rotated.
// Arrays need no alignment and do not overlap.
void SplitPlanes(PlaneShape shape, const std::byte* values, size_t count,
                 std::byte* const* planes);
void MergePlanes(PlaneShape shape, const std::byte* const* planes, size_t count,
                 std::byte* values);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_BYTE_PLANES_H_
