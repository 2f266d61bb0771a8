// Combine: the elements of several buffers combined into one, written to any
// number of places.
//
//   const float* in[] = {a, b, c};
//   float* out[] = {a, d};
//   Combine(Combination::Whole(Reduction::Average(), DType::kF32, 3),
//           {in, 3}, {out, 2}, count);
//
// The instruction set is chosen at run time (Highway); results are the same
// bits on all of them, whatever the alignment and however a range is split.
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
  ReduceOp op = ReduceOp::kSum;  // kAverage and kScaledSum add, as kSum.
  double input_scale = 1.0;      // Every element times this, first.
  int64_t divisor = 1;           // The result divided by this, last; positive.
  StoreMode stores = StoreMode::kCached;

  // The contributions of all `world` ranks, seen at once.
  static Combination Whole(const Reduction& reduction, DType dtype,
                           int64_t world);

  // The parts of one that travels: elements are scaled where they start,
  // partial results combined on the way, divided where they end.
  static Combination ScaleInput(const Reduction& reduction, DType dtype);
  static Combination Partial(const Reduction& reduction, DType dtype);
  static Combination DivideResult(const Reduction& reduction, DType dtype,
                                  int64_t world);

  // Whether combining a single source changes it.
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
