// The scale of gradients (StepScale), and the options that all optimizers
// share.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_STEP_SCALE_H_
#define TESSERA_OFFLOAD_OPTIMIZER_STEP_SCALE_H_

#include <cstdint>

namespace tessera::offload {

// The factor that gradients are multiplied by: unscale * clip_factor, computed
// in f64 and rounded to f32 once. A power of two changes only the exponent.
struct StepScale {
  double unscale = 1;      // 1 / loss scale.
  double clip_factor = 1;  // ClipFactor of gradient_statistics.h.
};

enum class WeightDecay : uint8_t {
  kDecoupled,  // The parameter shrinks by learning_rate * weight_decay.
  kCoupled,    // The gradient grows by weight_decay * parameter (L2).
};

// The rounding of bf16 moments. With kNearest, a change below half a unit in
// the last place (2^-9 to 2^-8 of the value) is always lost: with beta2 = 0.999
// a second moment would decrease by at most 0.1 % per step, so it never does.
// Stochastic rounding keeps the mean exact. Its random bits are a hash of the
// seed, the step and the element's index modulo 2^32: repeatable, and identical
// for every instruction set, number of threads and partition.
enum class MomentRounding : uint8_t { kStochastic, kNearest };
}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_STEP_SCALE_H_
