// Executor: runs a schedule over a communicator, with the user's stages.
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
// On a device (ExecutorOptions::queue) Run is best divided, so that the host
// waits once a step:
//
//   TESSERA_RETURN_IF_ERROR(executor->Start());
//   TESSERA_RETURN_IF_ERROR(optimizer.Step());  // Waits for its statistics.
//   TESSERA_ASSIGN_OR_RETURN(StepResult step, executor->Finish());
//
// The group's rank r executes the schedule's list r. A schedule of computations
// is lowered first (AddCommunication); one with sends and receives is validated
// (Validate) and executed unchanged. The two computations of a pair (with_next)
// run one after the other while their messages are in flight, or take turns
// (ExecutorOptions::interleaver).
//
// Memory: the tensors between stages, from a pool that lives as long as the
// executor. A rank holds
//   - for each live micro-batch of each of its stages (Proof::peak_activations)
//     the input, and from its I to its W the gradient of the output (without
//     the input if the stage keeps a copy: Stage::KeepsInput),
//   - tensors received but not used yet, and computed but not sent yet,
//   - receives posted ahead and sends in flight (ExecutorOptions).
//
// Errors. Any failure of a stage or a message breaks the group: the call
// returns the error on that rank, and one that repeats it on all others, as far
// as the engine reaches them, else at the deadline. It names rank, action,
// stage and micro-batch. Later calls are rejected. Errors of Create break
// nothing. On a device errors of its work and of messages are returned by
// Finish, in the words of the device or the communicator.
//
// Threads: one at a time. The communicator must outlive the executor, and must
// not be used otherwise while a step runs.
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
  double loss = 0;             // The mean over the micro-batches,
  std::vector<double> losses;  // which have these. The same on every rank.
};

class Executor {
 public:
  // A collective. `stages`: all that the rank holds (StageMap::StagesOf), in
  // any order. InvalidArgument if the schedule is wrong (with Validate's
  // words), its ranks are not the group's, a stage is missing or another rank's
  // or an option cannot be; FailedPrecondition if it is another rank that
  // has failed, or the ranks' schedules differ: who is named. The communicator
  // outlives the executor.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      collectives::Communicator& communicator, Schedule schedule,
      std::vector<StageBinding> stages, ExecutorOptions options = {});

  // On a device the host waits for the work on the executor's memory.
  ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // A training step: all micro-batches forward and backward. Stages add the
  // gradients of the mean loss to theirs (BackwardPass::loss_scale); in the end
  // those of copies and tied weights are added up. A collective.
  absl::StatusOr<StepResult> Run();

  // Runs only the forwards, in the schedule's order (ForwardPass::training is
  // false). A collective.
  absl::StatusOr<StepResult> RunForward();

  // Run and RunForward in two parts. The first enqueues the step: afterwards
  // work on the queue may use the gradients. Finish waits for the losses; on a
  // device the host waits only here, and not if it has waited for later work of
  // the queue. FailedPrecondition, which breaks nothing, in another order.
  absl::Status Start();
  absl::Status StartForward();
  absl::StatusOr<StepResult> Finish();

  // The stages' outputs change from the next step on: frees the old tensors and
  // queries the new specs. No effect if the options give the specs. Called by
  // every rank.
  void ForgetShapes() { negotiated_ = !options_.boundaries.empty(); }

  const Schedule& schedule() const { return schedule_; }  // Lowered.
  const Proof& proof() const { return proof_; }

  // The stages that Run (kBoth) or RunForward (kForward) unshards on this rank,
  // in order.
  std::vector<int32_t> UnshardOrder(Passes passes) const;

  // The timeline of the last step on this rank, in seconds from its begin.
  // Bytes are those of the tensors between stages. A receive lasts from the
  // begin of its wait, a started send until its completion is noticed. On a
  // device times are those at which the host enqueues the actions.
  const RankTimeline& timeline() const { return trace_.timeline(); }

  // The computations of a training step, which steps replay. Null: they are not
  // captured, or not yet.
  const DeviceGraph* graph() const { return training_.graph(); }

  // The last step of all ranks. Their clocks start at one barrier. A
  // collective.
  absl::StatusOr<Timeline> GatherTimeline();

 private:
  // The losses of a step, by micro-batch, in memory of the device.
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
  const std::vector<Stage*> stages_;  // In the order of the plan's.
  SharedGradients shared_;
  StepTrace trace_;
  // The pool's destructor waits for work on what is declared before it.
  Losses device_losses_;
  StagingPool staging_;
  Download download_;
  BoundaryPool pool_;
  Messenger messenger_;
  const ExecutionPlan training_plan_;
  const ExecutionPlan forward_plan_;
  StepRunner training_;
  StepRunner forward_;
  std::vector<double> losses_;  // By micro-batch; 0 where another rank has it.
  bool negotiated_ = false;
  bool started_ = false;
  absl::Status broken_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_EXECUTOR_H_
