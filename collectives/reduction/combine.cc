#include "collectives/reduction/combine.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduction/combine.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "collectives/reduction/combine-inl.h"

#if HWY_ONCE
namespace tessera::collectives {

HWY_EXPORT(CombineAny);
HWY_EXPORT(StreamBytes);

Combination Combination::Whole(const Reduction& reduction, DType dtype,
                               int64_t world) {
  Combination whole = ScaleInput(reduction, dtype);
  whole.divisor = DivideResult(reduction, dtype, world).divisor;
  return whole;
}

Combination Combination::ScaleInput(const Reduction& reduction, DType dtype) {
  Combination scaling = Partial(reduction, dtype);
  if (reduction.op == ReduceOp::kScaledSum) {
    scaling.input_scale = reduction.scale;
  }
  return scaling;
}

Combination Combination::Partial(const Reduction& reduction, DType dtype) {
  return {.dtype = dtype, .op = reduction.op};
}

Combination Combination::DivideResult(const Reduction& reduction, DType dtype,
                                      int64_t world) {
  Combination dividing = Partial(reduction, dtype);
  if (reduction.op == ReduceOp::kAverage) dividing.divisor = world;
  return dividing;
}

void Combine(const Combination& combination,
             std::span<const void* const> sources,
             std::span<void* const> destinations, int64_t count) {
  HWY_DYNAMIC_DISPATCH(CombineAny)(combination, sources, destinations, count);
}

void CopyBytes(void* destination, const void* source, int64_t bytes,
               StoreMode mode) {
  if (bytes <= 0) return;
  if (mode == StoreMode::kCached) {
    std::memcpy(destination, source, static_cast<size_t>(bytes));
    return;
  }
  HWY_DYNAMIC_DISPATCH(StreamBytes)
  (static_cast<std::byte*>(destination), static_cast<const std::byte*>(source),
   bytes);
}

}  // namespace tessera::collectives
#endif  // HWY_ONCE
