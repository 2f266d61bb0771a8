// Lion: the sign of an interpolated momentum, with decoupled weight decay, in
// one pass over memory.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_LION_H_
#define TESSERA_OFFLOAD_OPTIMIZER_LION_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "base/os/thread_pool.h"
#include "offload/optimizer/elementwise_optimizer.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"

namespace tessera::offload {

struct LionOptions {
  double learning_rate = 1e-4;
  double beta1 = 0.9;   // Of the direction.
  double beta2 = 0.99;  // Of the moment.
  double weight_decay = 0;
  MomentRounding rounding = MomentRounding::kStochastic;  // For bf16 moments.
  uint64_t seed = 0;                                      // For that rounding.
  std::shared_ptr<ThreadPool> pool = nullptr;             // May be shared.
  int threads = 1;  // Threads of a new pool, used if `pool` is null.
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(auto lion, Lion::Create({.learning_rate = 1e-4}));
//   TESSERA_RETURN_IF_ERROR(lion->Step(step, scale, ranges));
//
// It has one moment, `first` of the ranges. For f32 it computes, in this order
// and rounding after every operation:
//
//   g <- gradient * f32(unscale * clip_factor)
//   d <- sign(m * beta1 + g * (1 - beta1))         sign(0) = 0
//   m <- m * beta2 + g * (1 - beta2)
//   p <- p * (1 - learning_rate * weight_decay) - d * learning_rate
//   copy <- p, rounded to nearest even
//
// The result is bit-identical for every instruction set, number of threads and
// partition. Bytes moved per parameter are those of Sgd with momentum.
//
// Source: X. Chen et al., "Symbolic Discovery of Optimization Algorithms",
// arXiv 2302.06675, algorithm 2.
using Lion = ElementwiseOptimizer<LionOptions>;

// InvalidArgument if a number is not finite or out of range: learning_rate and
// weight_decay at least 0, betas in [0, 1), threads in 1 to 1024.
absl::Status CheckOptimizer(const LionOptions& options);
RangesStep StepOf(const LionOptions& options, int64_t step,
                  const StepScale& scale);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_LION_H_
