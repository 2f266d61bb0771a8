// Sgd: stochastic gradient descent, plain or with momentum, in one pass over
// memory.
//
//   TESSERA_ASSIGN_OR_RETURN(auto sgd, Sgd::Create({.learning_rate = 0.1,
//                                                   .momentum = 0.9}));
//   TESSERA_RETURN_IF_ERROR(sgd->Step(step, scale, ranges));
//
// For f32, in this order, every operation rounded on its own:
//
//   g <- gradient * f32(unscale * clip_factor)  [+ p * weight_decay: kCoupled]
//   m <- m * momentum + g * (1 - dampening)     [+ g in step 1]
//   d <- m                                      [g + m * momentum: nesterov]
//   p <- p - d * learning_rate
//                 [p * (1 - learning_rate * weight_decay) - ...: kDecoupled]
//   copy <- p, rounded to nearest even
//
// Same bits for every instruction set, number of threads and partition. Bytes a
// parameter: 20 with momentum in f32 (16 bf16, 14 8-bit), 12 without, 2 more
// with a copy.
//
// Sources: B. Polyak, 1964; I. Sutskever et al., ICML 2013, whose momentum is
// here in the form of most frameworks (the rate is outside of m); decoupled
// decay as arXiv 1711.05101, algorithm 1.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_SGD_H_
#define TESSERA_OFFLOAD_OPTIMIZER_SGD_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/thread_pool.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"

namespace tessera::offload {

struct SgdOptions {
  double learning_rate = 1e-2;
  double momentum = 0;   // 0: none; `first` of the ranges is not used.
  double dampening = 0;  // Not in step 1.
  bool nesterov = false;
  double weight_decay = 0;
  WeightDecay decay = WeightDecay::kCoupled;
  MomentRounding rounding = MomentRounding::kStochastic;  // Of bf16 moments.
  uint64_t seed = 0;                                      // Of that rounding.
  std::shared_ptr<ThreadPool> pool = nullptr;  // May be shared with others.
  int threads = 1;  // Threads of a new pool, used if `pool` is null.
};

class Sgd {
 public:
  // InvalidArgument if a number is not finite or out of range: learning_rate
  // and weight_decay at least 0, momentum and dampening in [0, 1), threads in 1
  // to 1024; or nesterov without momentum, or with dampening.
  static absl::StatusOr<std::unique_ptr<Sgd>> Create(const SgdOptions& options);

  const SgdOptions& options() const { return options_; }

  // For schedules; refused as by Create.
  absl::Status SetLearningRate(double learning_rate);

  // Like AdamW::Step, with one moment (`first`) or none.
  absl::Status Step(int64_t step, const StepScale& scale,
                    std::span<const ParameterRange> ranges);

  // The two halves of Step, for a step that a queue does later: Prepare takes
  // the options of now and checks the arguments that are not ranges.
  absl::StatusOr<RangesStep> Prepare(int64_t step,
                                     const StepScale& scale) const;
  absl::Status Run(const RangesStep& prepared,
                   std::span<const ParameterRange> ranges);

  // Restores what the last step of ranges with `undo` has overwritten, bit for
  // bit, but not their copies. Errors as UndoRanges.
  absl::Status Undo(std::span<const ParameterRange> ranges);

 private:
  explicit Sgd(const SgdOptions& options)
      : options_(options),
        pool_(ThreadPool::OrNew(options.pool, options.threads)) {}

  SgdOptions options_;
  std::shared_ptr<ThreadPool> pool_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_SGD_H_
