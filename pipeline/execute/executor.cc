#include "pipeline/execute/executor.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

bool HasMessages(const Schedule& schedule) {
  for (const std::vector<Action>& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (Communicates(action.kind)) return true;
    }
  }
  return false;
}

// Returns for each boundary whether its stages are on different ranks.
std::vector<bool> CrossedBoundaries(const StageMap& map) {
  std::vector<bool> crossed;
  for (int32_t stage = 0; stage + 1 < map.stages(); ++stage) {
    crossed.push_back(map.RankOf(stage) != map.RankOf(stage + 1));
  }
  return crossed;
}

// The implementations in the order of the rank's stages.
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

// The checks and the plan of one rank, without communication.
struct Prepared {
  Schedule schedule;
  Proof proof;
  std::vector<Stage*> stages;
};

absl::StatusOr<Prepared> Prepare(const collectives::Communicator& communicator,
                                 Schedule schedule,
                                 const std::vector<StageBinding>& bindings,
                                 const ExecutorOptions& options) {
  if (communicator.size() != schedule.map.ranks()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a schedule of ", schedule.map.ranks(), " ranks for a group of ",
        communicator.size(), "; they must be the same"));
  }
  TESSERA_RETURN_IF_ERROR(CheckOptions(options, schedule.map.stages()));
  Prepared prepared;
  if (!HasMessages(schedule)) {
    TESSERA_ASSIGN_OR_RETURN(schedule, AddCommunication(schedule));
  }
  TESSERA_ASSIGN_OR_RETURN(prepared.proof, Validate(schedule));
  const auto rank = static_cast<int32_t>(communicator.rank().value());
  TESSERA_ASSIGN_OR_RETURN(prepared.stages,
                           InOrder(bindings, schedule.map.StagesOf(rank)));
  prepared.schedule = std::move(schedule);
  return prepared;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(
    collectives::Communicator& communicator, Schedule schedule,
    std::vector<StageBinding> stages, ExecutorOptions options) {
  absl::StatusOr<Prepared> prepared =
      Prepare(communicator, std::move(schedule), stages, options);
  const uint64_t hash = prepared.ok() ? HashOf(prepared->schedule, options) : 0;
  collectives::CallOptions call;
  if (prepared.ok()) call.timeout = options.timeout;
  TESSERA_RETURN_IF_ERROR(
      CheckSameSchedule(communicator, hash, prepared.status(), call),
      Annotate(_, absl::StrCat("rank ", communicator.rank().value())));
  TESSERA_ASSIGN_OR_RETURN(
      SharedGradients shared,
      SharedGradients::Create(communicator, prepared->schedule, options.tied,
                              call));
  return std::unique_ptr<Executor>(new Executor(
      communicator, std::move(prepared->schedule), std::move(prepared->proof),
      std::move(prepared->stages), std::move(shared), std::move(options)));
}

Executor::Executor(collectives::Communicator& communicator, Schedule schedule,
                   Proof proof, std::vector<Stage*> stages,
                   SharedGradients shared, ExecutorOptions options)
    : communicator_(communicator),
      schedule_(std::move(schedule)),
      proof_(std::move(proof)),
      options_(std::move(options)),
      stages_(std::move(stages)),
      shared_(std::move(shared)),
      trace_(options_.trace),
      pool_(communicator, options_.memory, trace_),
      messenger_(communicator, pool_, trace_, options_),
      training_plan_(ExecutionPlan::Of(
          schedule_, static_cast<int32_t>(communicator.rank().value()),
          Passes::kBoth)),
      forward_plan_(ExecutionPlan::Of(
          schedule_, static_cast<int32_t>(communicator.rank().value()),
          Passes::kForward)),
      training_(training_plan_, stages_, schedule_.map.stages(),
                schedule_.microbatches, pool_, messenger_, trace_),
      forward_(forward_plan_, stages_, schedule_.map.stages(),
               schedule_.microbatches, pool_, messenger_, trace_),
      losses_(static_cast<size_t>(schedule_.microbatches)) {
  if (options_.boundaries.empty()) return;
  pool_.SetSpecs(options_.boundaries, CrossedBoundaries(schedule_.map));
  negotiated_ = true;
}

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
  return RunPlan(training_, /*trains=*/true);
}

absl::StatusOr<StepResult> Executor::RunForward() {
  return RunPlan(forward_, /*trains=*/false);
}

absl::StatusOr<StepResult> Executor::RunPlan(StepRunner& runner, bool trains) {
  if (!broken_.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the executor failed and accepts no further work; the error was ",
        broken_.ToString()));
  }
  absl::StatusOr<StepResult> result = RunOrFail(runner, trains);
  if (!result.ok()) return Break(result.status());
  return result;
}

absl::StatusOr<StepResult> Executor::RunOrFail(StepRunner& runner,
                                               bool trains) {
  if (!negotiated_) TESSERA_RETURN_IF_ERROR(AgreeOnShapes());
  if (options_.trace) {
    TESSERA_RETURN_IF_ERROR(
        communicator_.Barrier(Call()),
        Annotate(_, absl::StrCat("rank ", communicator_.rank().value(),
                                 ": the start of a step")));
  }
  trace_.Begin();
  std::fill(losses_.begin(), losses_.end(), 0.0);
  TESSERA_RETURN_IF_ERROR(runner.Run(losses_));
  trace_.Finish();
  if (trains) TESSERA_RETURN_IF_ERROR(shared_.Add(FindStage()));
  return ShareLosses();
}

absl::Status Executor::AgreeOnShapes() {
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<TensorSpec> specs,
      Negotiate(communicator_, schedule_.map, FindStage(), Call()));
  pool_.SetSpecs(std::move(specs), CrossedBoundaries(schedule_.map));
  negotiated_ = true;
  return absl::OkStatus();
}

// Each loss is on one rank, and 0 on all others, so sums are exact and the mean
// does not depend on the schedule.
absl::StatusOr<StepResult> Executor::ShareLosses() {
  TESSERA_RETURN_IF_ERROR(
      communicator_.AllReduce(collectives::Buffer(std::span(losses_)),
                              collectives::Reduction::Sum(), Call()),
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
  const absl::Status group = communicator_.status();
  broken_ = !group.ok() && absl::IsFailedPrecondition(error)
                ? absl::Status(group.code(), error.message())
                : error;
  communicator_.Abort(error.message());
  shared_.Abort(error.message());
  messenger_.Abandon();
  return broken_;
}

absl::StatusOr<Timeline> Executor::GatherTimeline() {
  return pipeline::GatherTimeline(communicator_, trace_.timeline(), Call());
}

}  // namespace tessera::pipeline
