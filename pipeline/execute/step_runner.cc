#include "pipeline/execute/step_runner.h"

#include <utility>

#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

const ConstTensorView* ReadOf(const BoundaryBuffer* buffer) {
  return buffer == nullptr ? nullptr : &buffer->read;
}
const TensorView* WriteOf(const BoundaryBuffer* buffer) {
  return buffer == nullptr ? nullptr : &buffer->view;
}

}  // namespace

StepRunner::StepRunner(const ExecutionPlan& plan, std::vector<Stage*> stages,
                       int64_t all_stages, int64_t microbatches,
                       BoundaryPool& pool, Messenger& messenger,
                       StepTrace& trace, Interleaver* interleaver)
    : plan_(plan),
      stages_(std::move(stages)),
      last_stage_(static_cast<int32_t>(all_stages) - 1),
      microbatches_(static_cast<size_t>(microbatches)),
      pool_(pool),
      messenger_(messenger),
      trace_(trace),
      live_(stages_.size() * microbatches_),
      interleaver_(interleaver) {
  std::vector<bool> own(microbatches_);
  for (const PlannedAction& planned : plan_.actions()) {
    if (planned.action.kind == ActionKind::kForward &&
        planned.action.stage == last_stage_) {
      own[static_cast<size_t>(planned.action.microbatch)] = true;
    }
  }
  for (size_t at = 0; at < microbatches_; ++at) {
    if (!own[at]) continue;
    if (at == 0 || !own[at - 1]) own_losses_.push_back({at, at});
    own_losses_.back().second = at + 1;
  }
}

absl::Status StepRunner::At(const PlannedAction& action,
                            const absl::Status& error) const {
  return Annotate(error, plan_.Describe(action));
}

absl::Status StepRunner::Run(std::span<const TensorView> losses) {
  losses_ = losses;
  TESSERA_RETURN_IF_ERROR(messenger_.Begin(plan_));
  const std::vector<PlannedAction>& actions = plan_.actions();
  for (size_t at = 0; at < actions.size(); ++at) {
    const PlannedAction& action = actions[at];
    if (Communicates(action.action.kind) && action.action.with_next) {
      TESSERA_RETURN_IF_ERROR(Exchange(action, actions[++at]));
    } else if (interleaver_ != nullptr && action.action.with_next) {
      TESSERA_RETURN_IF_ERROR(DoPair(action, actions[++at]));
    } else {
      TESSERA_RETURN_IF_ERROR(Do(action));
    }
    TESSERA_RETURN_IF_ERROR(messenger_.Poll());
  }
  return messenger_.Drain();
}

absl::Status StepRunner::RunCaptured(Queue& queue,
                                     std::span<const TensorView> losses) {
  losses_ = losses;
  TESSERA_RETURN_IF_ERROR(messenger_.Begin(plan_));
  TESSERA_RETURN_IF_ERROR(DoParameters(/*unshards=*/true));
  TESSERA_RETURN_IF_ERROR(LoadInputs());
  if (graph_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(Replay(queue));
  } else if (!has_allocated_) {
    TESSERA_RETURN_IF_ERROR(Compute());
    has_allocated_ = true;
  } else {
    TESSERA_ASSIGN_OR_RETURN(graph_,
                             Capture(queue, [this] { return Compute(); }),
                             Annotate(_, "capture of a step's computations"));
    captured_ = trace_.timeline();
    TESSERA_RETURN_IF_ERROR(queue.Replay(*graph_));
  }
  TESSERA_RETURN_IF_ERROR(DoParameters(/*unshards=*/false));
  return messenger_.Drain();
}

absl::Status StepRunner::LoadInputs() {
  for (const PlannedAction& action : plan_.actions()) {
    if (action.action.kind != ActionKind::kForward) continue;
    TESSERA_RETURN_IF_ERROR(
        StageOf(action).LoadInputs({.microbatch = action.action.microbatch,
                                    .loss_scale = LossScale()}),
        At(action, _));
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Compute() {
  for (const PlannedAction& action : plan_.actions()) {
    if (Computes(action.action.kind)) TESSERA_RETURN_IF_ERROR(Do(action));
  }
  return absl::OkStatus();
}

// Traces every computation at the time of the replay.
absl::Status StepRunner::Replay(Queue& queue) {
  const double begin = trace_.Now();
  TESSERA_RETURN_IF_ERROR(queue.Replay(*graph_));
  trace_.HoldAsIn(captured_);
  for (const PlannedAction& action : plan_.actions()) {
    if (Computes(action.action.kind)) trace_.Computed(action.action, begin);
  }
  return absl::OkStatus();
}

absl::Status StepRunner::DoParameters(bool unshards) {
  for (const PlannedAction& action : plan_.actions()) {
    const ActionKind kind = action.action.kind;
    if (Computes(kind) || (kind == ActionKind::kUnshard) != unshards) continue;
    TESSERA_RETURN_IF_ERROR(Parameters(action));
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Do(const PlannedAction& action) {
  switch (action.action.kind) {
    case ActionKind::kForward:
      return Forward(action);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return Backward(action);
    case ActionKind::kBackwardWeight:
      return BackwardWeight(action);
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return Send(action);
    case ActionKind::kReceiveForward:
    case ActionKind::kReceiveBackward:
      return Receive(action);
    default:
      return Parameters(action);
  }
}

// Traces every interval in which one of the two computes.
absl::Status StepRunner::DoPair(const PlannedAction& first,
                                const PlannedAction& second) {
  const PlannedAction* now = &first;
  interleaver_->OnSwitch([&] {
    if (computes_since_) EndComputing(*now);
    now = now == &first ? &second : &first;
    BeginComputing();
  });
  const absl::Status status =
      interleaver_->Run([&] { return Do(first); }, [&] { return Do(second); });
  interleaver_->OnSwitch([] {});
  return status;
}

absl::Status StepRunner::Forward(const PlannedAction& action) {
  Live& live = LiveOf(action);
  BoundaryBuffer* output = nullptr;
  if (action.boundary != kNobody) {
    TESSERA_ASSIGN_OR_RETURN(output, pool_.Acquire(action.boundary),
                             At(action, _));
  }
  ForwardPass pass{action.action.microbatch, trains(), ReadOf(live.input),
                   WriteOf(output), nullptr};
  if (action.action.stage == last_stage_) {
    pass.loss = &losses_[static_cast<size_t>(action.action.microbatch)];
  }
  trace_.HoldActivations(1);
  BeginComputing();
  TESSERA_RETURN_IF_ERROR(StageOf(action).Forward(pass), At(action, _));
  EndComputing(action);
  if (StageOf(action).KeepsInput(action.action.microbatch)) {
    TESSERA_RETURN_IF_ERROR(pool_.Release(std::exchange(live.input, nullptr)),
                            At(action, _));
  }
  if (action.hands_to != kNobody) {
    LiveOf(action.hands_to, action.action.microbatch).input = output;
  } else {
    live.output = output;
  }
  return trains() ? absl::OkStatus() : Release(action);
}

BackwardPass StepRunner::PassOf(const PlannedAction& action) {
  const Live& live = LiveOf(action);
  return {.microbatch = action.action.microbatch,
          .input = ReadOf(live.input),
          .output_gradient = ReadOf(live.output_gradient),
          .loss_scale = LossScale()};
}

absl::Status StepRunner::Backward(const PlannedAction& action) {
  BoundaryBuffer* gradient = nullptr;
  if (action.boundary != kNobody) {
    TESSERA_ASSIGN_OR_RETURN(gradient, pool_.Acquire(action.boundary),
                             At(action, _));
  }
  BackwardPass pass = PassOf(action);
  pass.input_gradient = WriteOf(gradient);
  const bool whole = action.action.kind == ActionKind::kBackward;
  Stage& stage = StageOf(action);
  BeginComputing();
  TESSERA_RETURN_IF_ERROR(
      whole ? stage.Backward(pass) : stage.BackwardInput(pass), At(action, _));
  EndComputing(action);
  if (action.hands_to != kNobody) {
    LiveOf(action.hands_to, action.action.microbatch).output_gradient =
        gradient;
  } else {
    LiveOf(action).input_gradient = gradient;
  }
  return whole ? Release(action) : absl::OkStatus();
}

absl::Status StepRunner::BackwardWeight(const PlannedAction& action) {
  BeginComputing();
  TESSERA_RETURN_IF_ERROR(StageOf(action).BackwardWeight(PassOf(action)),
                          At(action, _));
  EndComputing(action);
  return Release(action);
}

// Releases the micro-batch, which the stage has finished; tensors to send
// remain.
absl::Status StepRunner::Release(const PlannedAction& action) {
  Live& live = LiveOf(action);
  TESSERA_RETURN_IF_ERROR(pool_.Release(std::exchange(live.input, nullptr)),
                          At(action, _));
  TESSERA_RETURN_IF_ERROR(
      pool_.Release(std::exchange(live.output_gradient, nullptr)),
      At(action, _));
  StageOf(action).Release(action.action.microbatch);
  trace_.HoldActivations(-1);
  return absl::OkStatus();
}

absl::Status StepRunner::Parameters(const PlannedAction& action) {
  Stage& stage = StageOf(action);
  const ActionKind kind = action.action.kind;
  const double begin = trace_.Now();
  TESSERA_RETURN_IF_ERROR(kind == ActionKind::kUnshard ? stage.Unshard()
                          : kind == ActionKind::kReshard
                              ? stage.Reshard()
                              : stage.ReduceGradient(),
                          At(action, _));
  trace_.Communicated(action.action, begin);
  return absl::OkStatus();
}

BoundaryBuffer* StepRunner::TakeToSend(const PlannedAction& action) {
  Live& live = LiveOf(action);
  return std::exchange(action.action.kind == ActionKind::kSendForward
                           ? live.output
                           : live.input_gradient,
                       nullptr);
}

void StepRunner::Keep(const PlannedAction& receive, BoundaryBuffer* buffer) {
  Live& live = LiveOf(receive);
  (receive.action.kind == ActionKind::kReceiveForward ? live.input
                                                      : live.output_gradient) =
      buffer;
}

absl::Status StepRunner::Send(const PlannedAction& action) {
  return messenger_.Send(action, TakeToSend(action));
}

absl::Status StepRunner::Receive(const PlannedAction& action) {
  TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* const buffer,
                           messenger_.Receive(action));
  Keep(action, buffer);
  return absl::OkStatus();
}

absl::Status StepRunner::Exchange(const PlannedAction& first,
                                  const PlannedAction& second) {
  const bool sends = Sends(first.action.kind);
  const PlannedAction& send = sends ? first : second;
  const PlannedAction& receive = sends ? second : first;
  TESSERA_ASSIGN_OR_RETURN(
      BoundaryBuffer* const buffer,
      messenger_.Exchange(send, TakeToSend(send), receive));
  Keep(receive, buffer);
  return absl::OkStatus();
}

}  // namespace tessera::pipeline
