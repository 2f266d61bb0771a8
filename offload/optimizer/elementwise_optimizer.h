// ElementwiseOptimizer: the step of an optimizer that updates each element
// separately, in one pass over memory. AdamW (adamw.h), Lion (lion.h) and Sgd
// (sgd.h) are its instances.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_ELEMENTWISE_OPTIMIZER_H_
#define TESSERA_OFFLOAD_OPTIMIZER_ELEMENTWISE_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/step_runner.h"
#include "offload/optimizer/step_scale.h"

namespace tessera::offload {

// `Options` has a learning_rate, pool and threads, and two functions:
//
//   absl::Status CheckOptimizer(const Options& options);
//   RangesStep StepOf(const Options& options, int64_t step,
//                     const StepScale& scale);   // Preconditions: both valid.
template <typename Options>
class ElementwiseOptimizer {
 public:
  // Errors are those of CheckOptimizer.
  static absl::StatusOr<std::unique_ptr<ElementwiseOptimizer>> Create(
      const Options& options) {
    TESSERA_RETURN_IF_ERROR(CheckOptimizer(options));
    return absl::WrapUnique(new ElementwiseOptimizer(options));
  }

  const Options& options() const { return options_; }

  // For learning-rate schedules. Errors as for Create.
  absl::Status SetLearningRate(double learning_rate) {
    Options changed = options_;
    changed.learning_rate = learning_rate;
    TESSERA_RETURN_IF_ERROR(CheckOptimizer(changed));
    options_ = changed;
    return absl::OkStatus();
  }

  // Executes step number `step`, counted from 1, for every range that is not
  // frozen. Gradients must be finite (see GradientStatistics): a non-finite
  // gradient makes its element, or its block of 8-bit moments, NaN or infinite.
  // InvalidArgument, with nothing written, for a step below 1, a scale that is
  // negative or not finite, and as for CheckRanges. One call at a time.
  absl::Status Step(int64_t step, const StepScale& scale,
                    std::span<const ParameterRange> ranges) {
    TESSERA_ASSIGN_OR_RETURN(const RangesStep prepared, Prepare(step, scale));
    return RunRanges(prepared, ranges, *options_.pool);
  }

  // The step's numbers with the current options, for a step that a queue
  // executes later on pool() (RunRanges). Checks all arguments except the
  // ranges.
  absl::StatusOr<RangesStep> Prepare(int64_t step,
                                     const StepScale& scale) const {
    const RangesStep prepared = StepOf(options_, step, scale);
    TESSERA_RETURN_IF_ERROR(CheckStep(prepared.name, step, scale));
    return prepared;
  }
  ThreadPool& pool() const { return *options_.pool; }

  // For ranges with `undo`, restores bit for bit everything that the last step
  // has overwritten, except their copies. Errors as for UndoRanges.
  absl::Status Undo(std::span<const ParameterRange> ranges) {
    const RangesStep step = StepOf(options_, 1, {});
    return Annotate(UndoRanges(step.moments, ranges, *options_.pool),
                    step.name);
  }

 private:
  explicit ElementwiseOptimizer(const Options& options) : options_(options) {
    options_.pool = ThreadPool::OrNew(options.pool, options.threads);
  }

  Options options_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_ELEMENTWISE_OPTIMIZER_H_
