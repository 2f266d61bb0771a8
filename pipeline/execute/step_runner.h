// StepRunner: executes one rank's plan, action by action.
//
//   StepRunner runner(plan, stages, pool, messenger, trace);
//   TESSERA_RETURN_IF_ERROR(runner.Run(losses));
#ifndef TESSERA_PIPELINE_EXECUTE_STEP_RUNNER_H_
#define TESSERA_PIPELINE_EXECUTE_STEP_RUNNER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/tensor/tensor_view.h"
#include "pipeline/execute/execution_plan.h"
#include "pipeline/execute/interleaver.h"
#include "pipeline/execute/messenger.h"
#include "pipeline/execute/stage.h"
#include "pipeline/execute/step_trace.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

class StepRunner {
 public:
  // `stages` are in the order of the plan's stages(). All arguments must
  // outlive the runner.
  StepRunner(const ExecutionPlan& plan, std::vector<Stage*> stages,
             int64_t all_stages, int64_t microbatches, BoundaryPool& pool,
             Messenger& messenger, StepTrace& trace,
             Interleaver* interleaver = nullptr);

  // Executes the plan once. `losses` is indexed by micro-batch; the last stage,
  // if this rank has it, sets the losses of the micro-batches that it computes
  // here and leaves the others unchanged. The error names rank, action, stage
  // and micro-batch; the runner must not be used after it.
  absl::Status Run(std::span<const TensorView> losses);

  // The same with ExecutorOptions::captures. Requires a plan without messages.
  absl::Status RunCaptured(Queue& queue, std::span<const TensorView> losses);
  // The captured computations; null before the capture.
  const DeviceGraph* graph() const { return graph_.get(); }
  // Call this when the tensors of the graph are freed; a later step captures
  // again.
  void ForgetGraph() {
    has_allocated_ = false;
    graph_ = nullptr;
  }

  // The micro-batches whose loss a stage of this rank sets: ranges [first,
  // last).
  const std::vector<std::pair<size_t, size_t>>& own_losses() const {
    return own_losses_;
  }

 private:
  // The boundary tensors of one micro-batch in one stage; null if the tensor
  // does not exist, is not ready, or has been released.
  struct Live {
    BoundaryBuffer* input = nullptr;
    BoundaryBuffer* output = nullptr;
    BoundaryBuffer* output_gradient = nullptr;
    BoundaryBuffer* input_gradient = nullptr;
  };

  Live& LiveOf(int32_t local, int32_t microbatch) {
    return live_[static_cast<size_t>(local) * microbatches_ +
                 static_cast<size_t>(microbatch)];
  }
  Live& LiveOf(const PlannedAction& action) {
    return LiveOf(action.local, action.action.microbatch);
  }
  Stage& StageOf(const PlannedAction& action) {
    return *stages_[static_cast<size_t>(action.local)];
  }
  double LossScale() const { return 1.0 / static_cast<double>(microbatches_); }
  bool trains() const { return plan_.passes() == Passes::kBoth; }

  absl::Status LoadInputs();
  absl::Status Compute();
  absl::Status Replay(Queue& queue);
  absl::Status DoParameters(bool unshards);
  absl::Status Do(const PlannedAction& action);
  absl::Status DoPair(const PlannedAction& first, const PlannedAction& second);
  absl::Status Forward(const PlannedAction& action);
  absl::Status Backward(const PlannedAction& action);
  absl::Status BackwardWeight(const PlannedAction& action);
  absl::Status Parameters(const PlannedAction& action);
  absl::Status Send(const PlannedAction& action);
  absl::Status Receive(const PlannedAction& action);
  absl::Status Exchange(const PlannedAction& first,
                        const PlannedAction& second);
  void BeginComputing() { computes_since_ = trace_.Now(); }
  void EndComputing(const PlannedAction& action) {
    trace_.Computed(action.action, *computes_since_);
    computes_since_.reset();
  }
  BackwardPass PassOf(const PlannedAction& action);
  BoundaryBuffer* TakeToSend(const PlannedAction& action);
  void Keep(const PlannedAction& receive, BoundaryBuffer* buffer);
  absl::Status Release(const PlannedAction& action);
  absl::Status At(const PlannedAction& action, const absl::Status& error) const;

  const ExecutionPlan& plan_;
  const std::vector<Stage*> stages_;
  const int32_t last_stage_;
  const size_t microbatches_;
  BoundaryPool& pool_;
  Messenger& messenger_;
  StepTrace& trace_;
  std::vector<Live> live_;  // By stage, then micro-batch.
  std::span<const TensorView> losses_;
  std::vector<std::pair<size_t, size_t>> own_losses_;
  Interleaver* const interleaver_;
  // When the current computation began or resumed; none if nothing is
  // computing.
  std::optional<double> computes_since_ = {};
  bool has_allocated_ = false;  // Set by the first, uncaptured step.
  std::unique_ptr<DeviceGraph> graph_;
  RankTimeline captured_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_STEP_RUNNER_H_
