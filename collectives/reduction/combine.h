// Combine: reduces several buffers element by element and writes the result to
// any number of destinations.
//
//   const float* in[] = {a, b, c};
//   float* out[] = {a, d};
//   Combine(Combination::Whole(Reduction::Average(), DType::kF32, 3),
//           {in, 3}, {out, 2}, count);
//
// The instruction set is chosen at run time (Highway). Results have the same
// bits for every instruction set, alignment and split of the range.
#ifndef TESSERA_COLLECTIVES_REDUCTION_COMBINE_H_
#define TESSERA_COLLECTIVES_REDUCTION_COMBINE_H_

#include <cstdint>
#include <span>

#include "base/dtype/dtype.h"
#include "collectives/reduction/copy.h"
#include "collectives/reduction/reduction.h"

namespace tessera::collectives {

struct Combination {
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;  // kAverage and kScaledSum are sums.
  double input_scale = 1.0;      // First multiplies every element.
  int64_t divisor = 1;           // Finally divides the result; positive.
  StoreMode stores = StoreMode::kCached;

  // Combines the contributions of all `world` ranks at once.
  static Combination Whole(const Reduction& reduction, DType dtype,
                           int64_t world);

  // The steps of a reduction over several hops: scale the inputs, combine
  // partial results, divide the final result.
  static Combination ScaleInput(const Reduction& reduction, DType dtype);
  static Combination Partial(const Reduction& reduction, DType dtype);
  static Combination DivideResult(const Reduction& reduction, DType dtype,
                                  int64_t world);

  // True if combining a single source leaves it unchanged.
  bool KeepsSingleSource() const { return input_scale == 1.0 && divisor == 1; }
};

// destinations[k][i] = sources[0][i] op sources[1][i] op ..., from left to
// right, for every k and every i below `count`. At least one source and one
// destination. A destination may be exactly one of the sources; otherwise they
// do not overlap. Buffers need only the alignment of their element type.
//
// f16 and bf16 are combined in f32 and rounded once, to nearest even. f32 and
// f64 are combined in their own type; integers wrap. kMin and kMax return NaN
// if any element is NaN; of two zeros that differ in sign they return the later
// one. Division rounds floating-point results once and truncates integers
// towards zero. The scale is rounded to the type in which elements are
// combined. A NaN result is the type's positive quiet NaN. A single source that
// is neither scaled nor divided is copied bit by bit.
void Combine(const Combination& combination,
             std::span<const void* const> sources,
             std::span<void* const> destinations, int64_t count);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_REDUCTION_COMBINE_H_
