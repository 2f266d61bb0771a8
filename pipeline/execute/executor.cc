#include "pipeline/execute/executor.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/device/host_device.h"
#include "base/status_macros.h"
#include "pipeline/execute/agreement.h"
#include "pipeline/passes/add_communication.h"

namespace tessera::pipeline {
namespace {

absl::Status CheckOptions(const ExecutorOptions& options, int64_t stages) {
  if (options.timeout && *options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a timeout of ", absl::FormatDuration(*options.timeout),
                     "; it must be more than 0"));
  }
  if (options.start_from_bytes < 0 || options.receives_ahead < 0 ||
      options.sends_in_flight < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "start_from_bytes ", options.start_from_bytes, ", receives_ahead ",
        options.receives_ahead, ", sends_in_flight ", options.sends_in_flight,
        "; at least 0, 0 and 1 are allowed"));
  }
  const auto given = static_cast<int64_t>(options.boundaries.size());
  if (given != 0 && given != stages - 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(given, " boundaries between ", stages,
                     " stages; give all ", stages - 1, ", or none"));
  }
  for (size_t at = 0; at < options.boundaries.size(); ++at) {
    TESSERA_RETURN_IF_ERROR(
        CheckSpec(options.boundaries[at]),
        Annotate(_, absl::StrCat("the output of stage ", at)));
  }
  return CheckTied(options.tied, stages);
}

absl::Status CheckCaptures(const ExecutorOptions& options, int64_t ranks) {
  if (!options.captures) return absl::OkStatus();
  if (ranks > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("captures with a pipeline of ", ranks,
                     " ranks, whose messages cannot be captured; give one "
                     "rank, or no captures"));
  }
  if (options.queue != nullptr && !options.queue->is_immediate()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "captures on a queue that does work at once; give a device's queue, or "
      "no captures");
}

bool HasMessages(const Schedule& schedule) {
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (Communicates(action.kind)) return true;
    }
  }
  return false;
}

// Returns, for each boundary, true if its stages are on different ranks.
std::vector<bool> CrossedBoundaries(const StageMap& map) {
  std::vector<bool> crossed;
  for (int32_t stage = 0; stage + 1 < map.stages(); ++stage) {
    crossed.push_back(map.RankOf(stage) != map.RankOf(stage + 1));
  }
  return crossed;
}

// Returns the implementations in the order of the rank's stages.
absl::StatusOr<std::vector<Stage*>> InOrder(
    const std::vector<StageBinding>& bindings,
    const std::vector<int32_t>& held) {
  std::vector<Stage*> stages(held.size(), nullptr);
  const auto refuse = [&](int32_t stage, std::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stage ", stage, why, "; the rank holds ",
        held.size() == 1 ? "stage " : "stages ", absl::StrJoin(held, ", ")));
  };
  for (const auto& [stage, implementation] : bindings) {
    const auto at = std::lower_bound(held.begin(), held.end(), stage);
    if (at == held.end() || *at != stage) {
      return refuse(stage, " is given, but it is on another rank");
    }
    Stage*& slot = stages[static_cast<size_t>(at - held.begin())];
    if (slot != nullptr || implementation == nullptr) {
      return refuse(stage, slot != nullptr ? " is given twice" : " is null");
    }
    slot = implementation;
  }
  for (size_t at = 0; at < held.size(); ++at) {
    if (stages[at] == nullptr) return refuse(held[at], " is not given");
  }
  return stages;
}

Queue& QueueOf(const ExecutorOptions& options) {
  return options.queue != nullptr ? *options.queue : HostQueue();
}

}  // namespace

absl::StatusOr<Executor::Losses> Executor::Losses::Create(
    Device& device, int64_t microbatches) {
  Losses losses;
  const auto count = static_cast<size_t>(microbatches);
  TESSERA_ASSIGN_OR_RETURN(
      losses.memory, Buffer::Allocate(device.memory(), count * sizeof(double)),
      Annotate(_, "the losses of a step"));
  for (size_t at = 0; at < count; ++at) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView view,
        TensorView::Create(losses.bytes(at, 1), DType::kF64, {{1}},
                           losses.memory.kind()));
    losses.views.push_back(view);
  }
  return losses;
}

// The checks and the plan of one rank, without communication.
struct Executor::Prepared {
  Schedule schedule;
  Proof proof;
  std::vector<Stage*> stages;
  Losses losses;
};

absl::StatusOr<Executor::Prepared> Executor::Prepare(
    const collectives::Communicator& communicator, Schedule schedule,
    const std::vector<StageBinding>& bindings, const ExecutorOptions& options) {
  if (communicator.size() != schedule.map.ranks()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a schedule of ", schedule.map.ranks(), " ranks for a group of ",
        communicator.size(), "; they must be the same"));
  }
  TESSERA_RETURN_IF_ERROR(CheckOptions(options, schedule.map.stages()));
  TESSERA_RETURN_IF_ERROR(CheckCaptures(options, schedule.map.ranks()));
  Prepared prepared;
  if (!HasMessages(schedule)) {
    TESSERA_ASSIGN_OR_RETURN(schedule, AddCommunication(schedule));
  }
  TESSERA_ASSIGN_OR_RETURN(prepared.proof, Validate(schedule));
  const auto rank = static_cast<int32_t>(communicator.rank().value());
  TESSERA_ASSIGN_OR_RETURN(prepared.stages,
                           InOrder(bindings, schedule.map.StagesOf(rank)));
  TESSERA_ASSIGN_OR_RETURN(
      prepared.losses,
      Losses::Create(QueueOf(options).device(), schedule.microbatches));
  prepared.schedule = std::move(schedule);
  return prepared;
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(
    collectives::Communicator& communicator, Schedule schedule,
    std::vector<StageBinding> stages, ExecutorOptions options) {
  absl::StatusOr<Prepared> prepared =
      Prepare(communicator, std::move(schedule), stages, options);
  const uint64_t hash = prepared.ok() ? HashOf(prepared->schedule, options) : 0;
  collectives::CallOptions call;
  if (prepared.ok()) call.timeout = options.timeout;
  TESSERA_RETURN_IF_ERROR(
      CheckSameSchedule(communicator.host(), hash, prepared.status(), call),
      Annotate(_, absl::StrCat("rank ", communicator.rank().value())));
  TESSERA_ASSIGN_OR_RETURN(
      SharedGradients shared,
      SharedGradients::Create(communicator, QueueOf(options),
                              prepared->schedule, options.tied, call));
  std::unique_ptr<Executor> executor(
      new Executor(communicator, *std::move(prepared), std::move(shared),
                   std::move(options)));
  const std::vector<TensorSpec>& given = executor->options_.boundaries;
  if (!given.empty()) TESSERA_RETURN_IF_ERROR(executor->SetShapes(given));
  return executor;
}

Executor::Executor(collectives::Communicator& communicator, Prepared prepared,
                   SharedGradients shared, ExecutorOptions options)
    : communicator_(communicator),
      queue_(QueueOf(options)),
      schedule_(std::move(prepared.schedule)),
      proof_(std::move(prepared.proof)),
      options_(std::move(options)),
      stages_(std::move(prepared.stages)),
      shared_(std::move(shared)),
      trace_(options_.trace),
      device_losses_(std::move(prepared.losses)),
      staging_(queue_),
      pool_(communicator, queue_, options_.memory, trace_),
      messenger_(communicator, queue_, pool_, trace_, options_),
      training_plan_(ExecutionPlan::Of(
          schedule_, static_cast<int32_t>(communicator.rank().value()),
          Passes::kBoth)),
      forward_plan_(ExecutionPlan::Of(
          schedule_, static_cast<int32_t>(communicator.rank().value()),
          Passes::kForward)),
      training_(training_plan_, stages_, schedule_.map.stages(),
                schedule_.microbatches, pool_, messenger_, trace_,
                options_.interleaver),
      forward_(forward_plan_, stages_, schedule_.map.stages(),
               schedule_.microbatches, pool_, messenger_, trace_),
      losses_(static_cast<size_t>(schedule_.microbatches)) {}

StageOf Executor::FindStage() {
  return [this](int32_t stage) -> Stage& {
    const std::vector<int32_t>& held = training_plan_.stages();
    const auto at = std::lower_bound(held.begin(), held.end(), stage);
    return *stages_[static_cast<size_t>(at - held.begin())];
  };
}

std::vector<int32_t> Executor::UnshardOrder(Passes passes) const {
  std::vector<int32_t> stages;
  for (const PlannedAction& planned :
       (passes == Passes::kBoth ? training_plan_ : forward_plan_).actions()) {
    if (planned.action.kind == ActionKind::kUnshard) {
      stages.push_back(planned.action.stage);
    }
  }
  return stages;
}

absl::StatusOr<StepResult> Executor::Run() {
  TESSERA_RETURN_IF_ERROR(Start());
  return Finish();
}

absl::StatusOr<StepResult> Executor::RunForward() {
  TESSERA_RETURN_IF_ERROR(StartForward());
  return Finish();
}

absl::Status Executor::Start() { return StartPlan(training_, /*trains=*/true); }

absl::Status Executor::StartForward() {
  return StartPlan(forward_, /*trains=*/false);
}

absl::Status Executor::CheckUsable(bool started) const {
  if (!broken_.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the executor failed and accepts no further work; the error was ",
        broken_.ToString()));
  }
  if (started == started_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      started ? "no step is under way; call Start or StartForward first"
              : "a step is under way; call Finish first");
}

absl::Status Executor::StartPlan(StepRunner& runner, bool trains) {
  TESSERA_RETURN_IF_ERROR(CheckUsable(/*started=*/false));
  const absl::Status status = StartOrFail(runner, trains);
  if (!status.ok()) return Break(status);
  started_ = true;
  return absl::OkStatus();
}

absl::Status Executor::StartOrFail(StepRunner& runner, bool trains) {
  if (!negotiated_) TESSERA_RETURN_IF_ERROR(AgreeOnShapes());
  if (options_.trace) {
    TESSERA_RETURN_IF_ERROR(
        communicator_.host().Barrier(Call()),
        Annotate(_, absl::StrCat("rank ", communicator_.rank().value(),
                                 ": the start of a step")));
  }
  trace_.Begin();
  TESSERA_RETURN_IF_ERROR(ClearLosses());
  TESSERA_RETURN_IF_ERROR(trains && options_.captures
                              ? runner.RunCaptured(queue_, device_losses_.views)
                              : runner.Run(device_losses_.views));
  trace_.Finish();
  if (trains) TESSERA_RETURN_IF_ERROR(shared_.Add(FindStage()));
  return DownloadLosses();
}

absl::StatusOr<StepResult> Executor::Finish() {
  TESSERA_RETURN_IF_ERROR(CheckUsable(/*started=*/true));
  started_ = false;
  const absl::Status read = ReadLosses();
  if (!read.ok()) return Break(read);
  absl::StatusOr<StepResult> result = ShareLosses();
  if (!result.ok()) return Break(result.status());
  return result;
}

absl::Status Executor::AgreeOnShapes() {
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<TensorSpec> specs,
      Negotiate(communicator_.host(), schedule_.map, FindStage(), Call()));
  return SetShapes(std::move(specs));
}

absl::Status Executor::SetShapes(std::vector<TensorSpec> specs) {
  TESSERA_RETURN_IF_ERROR(
      pool_.SetSpecs(std::move(specs), CrossedBoundaries(schedule_.map)));
  training_.ForgetGraph();
  negotiated_ = true;
  return absl::OkStatus();
}

// Sets the losses of this rank's micro-batches to NaN, until a stage sets them;
// the losses of other ranks stay 0.
absl::Status Executor::ClearLosses() {
  const size_t count = losses_.size();
  TESSERA_RETURN_IF_ERROR(
      queue_.Fill(std::byte{0}, device_losses_.bytes(0, count)));
  for (const auto& [first, last] : training_.own_losses()) {
    TESSERA_RETURN_IF_ERROR(queue_.Fill(
        std::byte{0xFF}, device_losses_.bytes(first, last - first)));
  }
  return absl::OkStatus();
}

absl::Status Executor::DownloadLosses() {
  const std::span<const std::byte> source =
      device_losses_.bytes(0, losses_.size());
  if (queue_.is_immediate()) {
    return queue_.Copy(source, std::as_writable_bytes(std::span(losses_)));
  }
  TESSERA_ASSIGN_OR_RETURN(download_, staging_.StartDownload(source));
  return absl::OkStatus();
}

absl::Status Executor::ReadLosses() {
  if (queue_.is_immediate()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<const std::byte> bytes, download_.Wait(),
      Annotate(_, absl::StrCat("rank ", communicator_.rank().value(),
                               ": the work of a step")));
  std::memcpy(losses_.data(), bytes.data(), bytes.size());
  download_ = Download();
  return absl::OkStatus();
}

// Each loss is on one rank and 0 on all others, so sums are exact and the mean
// does not depend on the schedule.
absl::StatusOr<StepResult> Executor::ShareLosses() {
  const collectives::Buffer losses{std::span(losses_)};
  TESSERA_RETURN_IF_ERROR(
      communicator_.host().RunPrepared(
          share_losses_,
          collectives::AllReduceOf(losses, losses,
                                   collectives::Reduction::Sum()),
          Call()),
      Annotate(_, absl::StrCat("rank ", communicator_.rank().value(),
                               ": the losses of all micro-batches")));
  StepResult result;
  result.losses = losses_;
  result.loss = std::accumulate(losses_.begin(), losses_.end(), 0.0) /
                static_cast<double>(losses_.size());
  return result;
}

absl::Status Executor::Break(const absl::Status& error) {
  // If the group was broken before, timing decides whether this call was
  // rejected or interrupted: report the code that broke the group.
  absl::Status group = communicator_.status();
  if (group.ok()) group = communicator_.host().status();
  broken_ = !group.ok() && absl::IsFailedPrecondition(error)
                ? absl::Status(group.code(), error.message())
                : error;
  communicator_.Abort(error.message());
  shared_.Abort(error.message());
  messenger_.Abandon();
  return broken_;
}

absl::StatusOr<Timeline> Executor::GatherTimeline() {
  return pipeline::GatherTimeline(communicator_.host(), trace_.timeline(),
                                  Call());
}

}  // namespace tessera::pipeline
