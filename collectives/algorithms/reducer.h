// Reducer: how the partial results of one operation are combined on their way.
//
//   const Reducer reducer = Reducer::Of(reduction, dtype, world);
//   reducer.Partial(lower, upper, out, count);   // on the way
//   reducer.Last(lower, upper, out, count);      // where the result is
//   complete
//
// Inputs are scaled before they start and results divided where they end, so
// what travels is plain sums (products, ...) of the type itself: partial
// results of f16 and bf16 are rounded once per hop.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_REDUCER_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype/dtype.h"
#include "collectives/reduction/combine.h"
#include "collectives/reduction/reduction.h"

namespace tessera::collectives {

struct Reducer {
  Combination partial;
  Combination last;  // Completes a result: divides.

  static Reducer Of(const Reduction& reduction, DType dtype, int64_t world) {
    return {Combination::Partial(reduction, dtype),
            Combination::DivideResult(reduction, dtype, world)};
  }
  // The same where another reduction follows: nothing is complete yet.
  Reducer WithoutLast() const { return {partial, partial}; }

  const Combination& At(bool complete) const {
    return complete ? last : partial;
  }
  int64_t element() const { return SizeInBytes(partial.dtype); }
};

// `result` may be either source.
inline void CombineTwo(const Combination& combination, const std::byte* lower,
                       const std::byte* upper, std::byte* result,
                       int64_t count) {
  const void* const sources[] = {lower, upper};
  void* const destinations[] = {result};
  if (count > 0) Combine(combination, sources, destinations, count);
}

// A single contribution, scaled or divided, or copied, or left where it is.
inline void CombineOne(const Combination& combination, const std::byte* source,
                       std::byte* result, int64_t count) {
  if (count == 0) return;
  if (!combination.KeepsSingleSource()) {
    const void* const sources[] = {source};
    void* const destinations[] = {result};
    Combine(combination, sources, destinations, count);
  } else if (source != result) {
    CopyBytes(result, source, count * SizeInBytes(combination.dtype));
  }
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_REDUCER_H_
