// Sgd: stochastic gradient descent, plain or with momentum, in one pass over
// memory.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_SGD_H_
#define TESSERA_OFFLOAD_OPTIMIZER_SGD_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "base/os/thread_pool.h"
#include "offload/optimizer/elementwise_optimizer.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"

namespace tessera::offload {

struct SgdOptions {
  double learning_rate = 1e-2;
  double momentum = 0;   // 0: none; `first` of the ranges is ignored.
  double dampening = 0;  // Not applied in step 1.
  bool nesterov = false;
  double weight_decay = 0;
  WeightDecay decay = WeightDecay::kCoupled;
  MomentRounding rounding = MomentRounding::kStochastic;  // For bf16 moments.
  uint64_t seed = 0;                                      // For that rounding.
  std::shared_ptr<ThreadPool> pool = nullptr;             // May be shared.
  int threads = 1;  // Threads of a new pool, used if `pool` is null.
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(auto sgd, Sgd::Create({.learning_rate = 0.1,
//                                                   .momentum = 0.9}));
//   TESSERA_RETURN_IF_ERROR(sgd->Step(step, scale, ranges));
//
// For f32 it computes, in this order and rounding after every operation:
//
//   g <- gradient * f32(unscale * clip_factor)  [+ p * weight_decay: kCoupled]
//   m <- m * momentum + g * (1 - dampening)     [+ g in step 1]
//   d <- m                                      [g + m * momentum: nesterov]
//   p <- p - d * learning_rate
//                 [p * (1 - learning_rate * weight_decay) - ...: kDecoupled]
//   copy <- p, rounded to nearest even
//
// The result is bit-identical for every instruction set, number of threads and
// partition. Bytes moved per parameter: 20 with momentum in f32 (16 in bf16, 14
// in 8 bits), 12 without momentum, 2 more with a copy.
//
// Sources: B. Polyak, 1964; I. Sutskever et al., ICML 2013, with momentum in
// the form of most frameworks (the learning rate is not part of m); decoupled
// decay as in arXiv 1711.05101, algorithm 1.
using Sgd = ElementwiseOptimizer<SgdOptions>;

// InvalidArgument if a number is not finite or out of range: learning_rate and
// weight_decay at least 0, momentum and dampening in [0, 1), threads in 1 to
// 1024; or nesterov without momentum, or with dampening.
absl::Status CheckOptimizer(const SgdOptions& options);
RangesStep StepOf(const SgdOptions& options, int64_t step,
                  const StepScale& scale);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_SGD_H_
