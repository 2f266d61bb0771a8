// StepRunner: does one rank's plan, action by action.
//
//   StepRunner runner(plan, stages, pool, messenger, trace);
//   TESSERA_RETURN_IF_ERROR(runner.Run(losses));
#ifndef TESSERA_PIPELINE_EXECUTE_STEP_RUNNER_H_
#define TESSERA_PIPELINE_EXECUTE_STEP_RUNNER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "pipeline/execute/execution_plan.h"
#include "pipeline/execute/messenger.h"
#include "pipeline/execute/stage.h"
#include "pipeline/execute/step_trace.h"

namespace tessera::pipeline {

class StepRunner {
 public:
  // `stages` are the plan's, in its order. All outlive the runner.
  StepRunner(const ExecutionPlan& plan, std::vector<Stage*> stages,
             int64_t all_stages, int64_t microbatches, BoundaryPool& pool,
             Messenger& messenger, StepTrace& trace);

  // Runs the plan once. Where the rank has the last stage, `losses` get those
  // of the micro-batches that pass it here; the others stay. The error names
  // rank, action, stage and micro-batch; after it the runner is of no use.
  absl::Status Run(std::span<double> losses);

 private:
  // The boundary tensors of one micro-batch in one stage; null if there is
  // none, or none yet, or no longer.
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
  bool trains() const { return plan_.passes() == Passes::kBoth; }

  absl::Status Do(const PlannedAction& action);
  absl::Status Forward(const PlannedAction& action);
  absl::Status Backward(const PlannedAction& action);
  absl::Status BackwardWeight(const PlannedAction& action);
  absl::Status Parameters(const PlannedAction& action);
  absl::Status Send(const PlannedAction& action);
  absl::Status Receive(const PlannedAction& action);
  absl::Status Exchange(const PlannedAction& first,
                        const PlannedAction& second);
  BackwardPass PassOf(const PlannedAction& action);
  BoundaryBuffer* TakeToSend(const PlannedAction& action);
  void Keep(const PlannedAction& receive, BoundaryBuffer* buffer);
  void Release(const PlannedAction& action);
  absl::Status At(const PlannedAction& action, const absl::Status& error) const;

  const ExecutionPlan& plan_;
  const std::vector<Stage*> stages_;
  const int32_t last_stage_;
  const size_t microbatches_;
  BoundaryPool& pool_;
  Messenger& messenger_;
  StepTrace& trace_;
  std::vector<Live> live_;  // By stage, then micro-batch.
  std::span<double> losses_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_STEP_RUNNER_H_
