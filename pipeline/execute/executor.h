// Executor: runs a schedule over a communicator, with the user's stages.
#ifndef TESSERA_PIPELINE_EXECUTE_EXECUTOR_H_
#define TESSERA_PIPELINE_EXECUTE_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/staging.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "pipeline/execute/execution_plan.h"
#include "pipeline/execute/messenger.h"
#include "pipeline/execute/options.h"
#include "pipeline/execute/shared_gradients.h"
#include "pipeline/execute/stage.h"
#include "pipeline/execute/step_runner.h"
#include "pipeline/execute/step_trace.h"
#include "pipeline/proof/validate.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// One of the rank's stages. Not owned.
struct StageBinding {
  int32_t stage = 0;
  Stage* implementation = nullptr;
};

struct StepResult {
  double loss = 0;             // Mean over the micro-batches.
  std::vector<double> losses;  // By micro-batch. The same on every rank.
};

// Example:
//
//   // On every rank of the pipeline's group:
//   TESSERA_ASSIGN_OR_RETURN(
//       auto executor,
//       Executor::Create(*communicator, schedule, {{stage_number, &stage}}));
//   for (;;) {
//     stage.ZeroGradients();
//     TESSERA_ASSIGN_OR_RETURN(StepResult step, executor->Run());
//     optimizer.Step();                 // step.loss is the same on every rank
//   }
//
// On a device (ExecutorOptions::queue), split Run in two so that the host waits
// only once per step:
//
//   TESSERA_RETURN_IF_ERROR(executor->Start());
//   TESSERA_RETURN_IF_ERROR(optimizer.Step());  // Waits for its statistics.
//   TESSERA_ASSIGN_OR_RETURN(StepResult step, executor->Finish());
//
// The group's rank r executes the schedule's list r. A schedule of computations
// is lowered first (AddCommunication); one with sends and receives is validated
// (Validate) and executed unchanged. The two computations of a pair (with_next)
// run one after the other while their messages are in flight, or are
// interleaved (ExecutorOptions::interleaver).
//
// Memory. The tensors between stages come from a pool that lives as long as the
// executor. A rank holds
//   - for each live micro-batch of each of its stages (Proof::peak_activations)
//     the input, and from its I to its W the gradient of the output (without
//     the input if the stage keeps a copy: Stage::KeepsInput),
//   - tensors received but not used yet, and computed but not sent yet,
//   - receives posted ahead and sends in flight (ExecutorOptions).
//
// Errors. Any failure of a stage or a message breaks the group: the call
// returns the error on that rank, and an error that repeats it on every other
// rank, or a timeout where the engine cannot notify the rank. The error names
// rank, action, stage and micro-batch. Later calls are rejected. An error from
// Create leaves the group usable. On a device, Finish returns the errors of the
// device's work and of messages, with the message of the device or the
// communicator.
//
// Not thread-safe. The communicator must outlive the executor, and must not be
// used for anything else while a step runs.
class Executor {
 public:
  // A collective. `stages` has every stage that the rank holds
  // (StageMap::StagesOf), in any order. InvalidArgument if the schedule is
  // invalid (with Validate's message), its number of ranks is not the group's
  // size, a stage is missing or belongs to another rank, or an option is
  // invalid. FailedPrecondition if another rank failed or the ranks' schedules
  // differ; the message names these ranks. The communicator must outlive the
  // executor.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      collectives::Communicator& communicator, Schedule schedule,
      std::vector<StageBinding> stages, ExecutorOptions options = {});

  // On a device, waits for the work on the executor's memory.
  ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Runs a training step: all micro-batches forward and backward. Stages
  // accumulate the gradients of the mean loss (BackwardPass::loss_scale); at
  // the end of the step the gradients of stage copies and of tied weights are
  // summed. A collective.
  absl::StatusOr<StepResult> Run();

  // Runs only the forwards, in the schedule's order (ForwardPass::training is
  // false). A collective.
  absl::StatusOr<StepResult> RunForward();

  // Run and RunForward in two parts. Start and StartForward enqueue the step;
  // work enqueued afterwards may use the gradients. Finish waits for the
  // losses. On a device the host waits only in Finish, and does not wait there
  // if it has already waited for later work of the queue. Calls in another
  // order return FailedPrecondition and leave the executor usable.
  absl::Status Start();
  absl::Status StartForward();
  absl::StatusOr<StepResult> Finish();

  // Call this on every rank when the shapes of the stages' outputs change from
  // the next step on: the next step frees the old tensors and queries the new
  // specs. No effect if the options give the specs.
  void ForgetShapes() { negotiated_ = !options_.boundaries.empty(); }

  const Schedule& schedule() const { return schedule_; }  // Lowered.
  const Proof& proof() const { return proof_; }

  // The stages that Run (kBoth) or RunForward (kForward) unshards on this rank,
  // in order.
  std::vector<int32_t> UnshardOrder(Passes passes) const;

  // The timeline of the last step on this rank, in seconds from the step's
  // begin. Its bytes count the tensors between stages. A receive begins when
  // the rank starts to wait for it; an asynchronous send ends when its
  // completion is noticed. On a device the times are those at which the host
  // enqueues the actions.
  const RankTimeline& timeline() const { return trace_.timeline(); }

  // The captured computations that training steps replay. Null if nothing has
  // been captured.
  const DeviceGraph* graph() const { return training_.graph(); }

  // The timeline of the last step on all ranks, whose clocks start at a common
  // barrier. A collective.
  absl::StatusOr<Timeline> GatherTimeline();

 private:
  // The losses of a step, by micro-batch, in device memory.
  struct Losses {
    Buffer memory;
    std::vector<TensorView> views;

    static absl::StatusOr<Losses> Create(Device& device, int64_t microbatches);
    std::span<std::byte> bytes(size_t first, size_t count) {
      return memory.bytes().subspan(first * sizeof(double),
                                    count * sizeof(double));
    }
  };
  struct Prepared;

  static absl::StatusOr<Prepared> Prepare(
      const collectives::Communicator& communicator, Schedule schedule,
      const std::vector<StageBinding>& bindings,
      const ExecutorOptions& options);
  Executor(collectives::Communicator& communicator, Prepared prepared,
           SharedGradients shared, ExecutorOptions options);

  absl::Status CheckUsable(bool started) const;
  absl::Status StartPlan(StepRunner& runner, bool trains);
  absl::Status StartOrFail(StepRunner& runner, bool trains);
  absl::Status AgreeOnShapes();
  absl::Status SetShapes(std::vector<TensorSpec> specs);
  absl::Status ClearLosses();
  absl::Status DownloadLosses();
  absl::Status ReadLosses();
  absl::StatusOr<StepResult> ShareLosses();
  absl::Status Break(const absl::Status& error);
  collectives::CallOptions Call() const {
    return {.timeout = options_.timeout};
  }
  StageOf FindStage();

  collectives::Communicator& communicator_;
  Queue& queue_;
  const Schedule schedule_;
  const Proof proof_;
  const ExecutorOptions options_;
  const std::vector<Stage*> stages_;  // In the plan's order.
  SharedGradients shared_;
  StepTrace trace_;
  // Members declared before the pool outlive it: its destructor waits for work
  // on their memory.
  Losses device_losses_;
  StagingPool staging_;
  Download download_;
  BoundaryPool pool_;
  Messenger messenger_;
  const ExecutionPlan training_plan_;
  const ExecutionPlan forward_plan_;
  StepRunner training_;
  StepRunner forward_;
  std::vector<double> losses_;  // By micro-batch; 0 if on another rank.
  std::optional<collectives::PreparedOperation> share_losses_;
  bool negotiated_ = false;
  bool started_ = false;
  absl::Status broken_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_EXECUTOR_H_
