// ParameterRange: what an optimizer's step needs of a range of one parameter.
//
//   ParameterRange range = {
//       .name = "layers.0.weight",
//       .parameter = std::span(master),           // f32
//       .gradient = std::span<const BF16>(gradient),
//       .first = MomentSpan::Of(std::span(m)),
//       .second = MomentSpan::Of(std::span(v)),
//       .copy = std::span(weights),               // bf16, optional
//   };
//
// A range may be a whole parameter, a shard of it, or a piece that is in memory
// just now. Stepping the pieces gives the bits of stepping the whole.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_PARAMETER_RANGE_H_
#define TESSERA_OFFLOAD_OPTIMIZER_PARAMETER_RANGE_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "offload/optimizer/moment.h"
#include "offload/optimizer/typed_span.h"

namespace tessera::offload {

struct ParameterRange {
  std::string_view name = {};  // For messages.

  // Where the range starts in what its moments belong to (the parameter, or
  // this rank's shard of it), and how many elements that has. With 8-bit
  // moments the range must start at a block and end at one or at the end of
  // all; stochastic rounding depends on `begin`. `whole` 0: it ends there.
  int64_t begin = 0;
  int64_t whole = 0;

  TypedSpan parameter = {};      // f32, or f64. Updated.
  ConstTypedSpan gradient = {};  // f32, bf16 or f16; f64 for f64.
  MomentSpan first = {};         // Updated; unless plain SGD.
  MomentSpan second = {};        // Updated; AdamW alone.
  TypedSpan copy = {};           // bf16 or f16; set to the new parameters,
                                 // rounded to nearest even. Empty: none.

  bool frozen = false;  // Nothing is read, written or checked.
};

// OK, or InvalidArgument, with the range's name and number, where lengths
// differ, a type is not supported, data is not aligned to its elements, `begin`
// or the end is inside a block, or memory that is written overlaps other
// memory of any of the ranges. `moments` (0 to 2) are needed; others are
// ignored.
absl::Status CheckRanges(std::span<const ParameterRange> ranges, int moments);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_PARAMETER_RANGE_H_
