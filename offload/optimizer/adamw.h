// AdamW: Adam with decoupled weight decay, in one pass over memory.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_ADAMW_H_
#define TESSERA_OFFLOAD_OPTIMIZER_ADAMW_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "base/os/thread_pool.h"
#include "offload/optimizer/elementwise_optimizer.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"

namespace tessera::offload {

struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  WeightDecay decay = WeightDecay::kDecoupled;  // kCoupled: Adam with L2.
  bool bias_correction = true;                  // False: uses 0 for beta^t.
  MomentRounding rounding = MomentRounding::kStochastic;  // For bf16 moments.
  uint64_t seed = 0;                                      // For that rounding.
  std::shared_ptr<ThreadPool> pool = nullptr;             // May be shared.
  int threads = 1;  // Threads of a new pool, used if `pool` is null.
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(auto adamw, AdamW::Create({.learning_rate = 3e-4,
//                                                       .threads = 8}));
//   TESSERA_ASSIGN_OR_RETURN(GradientStatistics statistics, ...);
//   const StepScale scale = {
//       .unscale = 1 / loss_scale,
//       .clip_factor = ClipFactor(statistics.Norm() / loss_scale, 1.0)};
//   // step is 1, 2, 3 ...
//   TESSERA_RETURN_IF_ERROR(adamw->Step(step, scale, ranges));
//
// Each byte of parameters, gradients and moments moves between memory and the
// processor once. For f32 it computes, in this order and rounding after every
// operation:
//
//   g <- gradient * f32(unscale * clip_factor)
//                                          [kCoupled: + p * weight_decay]
//   m <- m * beta1 + g * (1 - beta1)
//   v <- v * beta2 + (g * (1 - beta2)) * g
//   p <- p * (1 - learning_rate * weight_decay)    [kCoupled: p]
//        - (m / (sqrt(v) * (1 / sqrt(1 - beta2^t)) + epsilon))
//          * (learning_rate / (1 - beta1^t))
//   copy <- p, rounded to nearest even
//
// without the terms of weight_decay if ParameterRange::decays is false. The
// result is bit-identical for every instruction set, number of threads and
// partition into ranges. Constant factors in parentheses are computed in f64
// and rounded once. The parameter update uses the moments before they are
// rounded for storage; f64 parameters are computed in f64.
//
// Sources: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization",
// arXiv 1711.05101, algorithm 2; D. Kingma, J. Ba, arXiv 1412.6980.
using AdamW = ElementwiseOptimizer<AdamWOptions>;

// InvalidArgument if a number is not finite or out of range: learning_rate,
// weight_decay and epsilon at least 0, betas in [0, 1), threads in 1 to 1024.
absl::Status CheckOptimizer(const AdamWOptions& options);
RangesStep StepOf(const AdamWOptions& options, int64_t step,
                  const StepScale& scale);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_ADAMW_H_
