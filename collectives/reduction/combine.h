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
// do not overlap. Elements are aligned as their type; buffers need no more.
//
// f16 and bf16 are combined in f32 and rounded once, to nearest even. f32 and
// f64 are combined in their own type, integers wrap. kMin and kMax are NaN
// where any element is NaN; of zeros that differ in sign the later one counts.
// The divisor divides floating-point results (rounded once) and integers
// towards zero; the scale is rounded to the type that is combined in. A result
// that is NaN is the type's positive quiet NaN; a single source that is neither
// scaled nor divided is copied as it is.
void Combine(const Combination& combination,
             std::span<const void* const> sources,
             std::span<void* const> destinations, int64_t count);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_REDUCTION_COMBINE_H_
