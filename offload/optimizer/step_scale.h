// StepScale, and the choices that all optimizers have.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_STEP_SCALE_H_
#define TESSERA_OFFLOAD_OPTIMIZER_STEP_SCALE_H_

#include <cstdint>

namespace tessera::offload {

// The factor that gradients are multiplied by: unscale * clip_factor, computed
// in f64 and rounded to f32 once. A power of two changes only the exponent.
struct StepScale {
  double unscale = 1;      // One over the loss scale.
  double clip_factor = 1;  // ClipFactor of gradient_statistics.h.
};

enum class WeightDecay : uint8_t {
  kDecoupled,  // The parameter shrinks by learning_rate * weight_decay.
  kCoupled,    // The gradient grows by weight_decay * parameter (L2).
};

// How bf16 moments are rounded. With nearest, a change below half a unit in the
// last place (2^-9 to 2^-8 of the value) is lost every time: a second moment
// with beta2 = 0.999 changes by at most 0.1 % a step downwards and so never
// falls again. Stochastic rounding keeps the mean exact. Its bits are a hash of
// the seed, the step and the element's place modulo 2^32: repeatable, and the
// same for every instruction set, number of threads and partition.
enum class MomentRounding : uint8_t { kStochastic, kNearest };
}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_STEP_SCALE_H_
