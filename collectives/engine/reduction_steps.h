// The steps of a reduction that a library which only adds leaves to us: the
// scaling of a scaled sum before, the division of an average after.
#ifndef TESSERA_COLLECTIVES_ENGINE_REDUCTION_STEPS_H_
#define TESSERA_COLLECTIVES_ENGINE_REDUCTION_STEPS_H_

#include <cstdint>

#include "collectives/operation/buffer.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {

inline bool ScalesInput(const Reduction& reduction) {
  return reduction.op == ReduceOp::kScaledSum && reduction.scale != 1.0;
}

// output[i] = input[i] * scale. The same memory or apart.
inline void ScaleInto(const Reduction& reduction, ConstBuffer input,
                      Buffer output) {
  const void* source = input.data;
  Combine(Combination::ScaleInput(reduction, input.dtype), {&source, 1},
          {&output.data, 1}, input.count);
}

// What the sum of `world` ranks still needs; nothing unless it is an average.
inline void Finish(const Reduction& reduction, Buffer sum, int64_t world) {
  const Combination divide =
      Combination::DivideResult(reduction, sum.dtype, world);
  if (divide.KeepsSingleSource()) return;
  const void* source = sum.data;
  Combine(divide, {&source, 1}, {&sum.data, 1}, sum.count);
}

// output[i] = a[i] op b[i].
inline void CombineTwo(const Combination& partial, const void* a, const void* b,
                       void* output, int64_t count) {
  const void* sources[] = {a, b};
  Combine(partial, sources, {&output, 1}, count);
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_REDUCTION_STEPS_H_
