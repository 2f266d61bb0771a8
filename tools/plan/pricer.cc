#include "tools/plan/pricer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"
#include "tools/train/predict/activations/activation_memory.h"
#include "tools/train/predict/predict_rank.h"
#include "tools/train/predict/stage_work.h"
#include "tools/train/predict/state/state_memory.h"
#include "tools/train/predict/traffic/predict_traffic.h"
#include "tools/train/predict/traffic/stage_traffic.h"

namespace tessera::plan {
namespace {

using pipeline::ActionKind;
using train::RankPlace;
using train::StageShapes;
using train::TrafficAxis;

// Whether backwards are whole, so that their messages go once.
bool HasWholeBackwards(const Candidate& candidate) {
  return candidate.schedule == "1f1b" ||
         candidate.schedule == "interleaved_1f1b";
}

// As many as fill the pipeline, if there are so many.
int64_t FillingMicroBatches(const Candidate& candidate, int64_t batch) {
  return std::min(candidate.micro_batches(batch), 2 * candidate.mesh.pp);
}

// The first two and the last two: those between have as many layers as the
// second, or fewer, and no more micro-batches.
std::set<int64_t> RanksWithMost(int64_t pp) {
  return {0, std::min<int64_t>(1, pp - 1), std::max<int64_t>(pp - 2, 0),
          pp - 1};
}

std::string PipelineName(const Candidate& c) {
  return absl::StrCat(c.schedule, "/", c.chunks, "/", c.mesh.pp);
}

std::string PassesName(const Candidate& c) {
  return absl::StrCat(PipelineName(c), "/", c.mesh.tp, "/", c.mesh.cp, "/",
                      c.micro_batch, "/", static_cast<int>(c.recompute));
}

}  // namespace

absl::StatusOr<const train::RunPlan*> Pricer::PlanOf(
    const Candidate& candidate) {
  const int64_t count = FillingMicroBatches(candidate, request_.batch);
  const Pipeline key = {candidate.schedule, candidate.chunks, candidate.mesh.pp,
                        count};
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    train::RunOptions options = RunOptionsOf(request_, candidate);
    options.batch = options.mesh.dp * options.micro_batch * count;
    found = plans_.emplace(key, train::RunPlan::Create(options)).first;
  }
  TESSERA_RETURN_IF_ERROR(found->second.status());
  return &*found->second;
}

// The passes of a stage, with what its ranks send meanwhile.
absl::StatusOr<pipeline::StageCosts> Pricer::StageCost(
    const Candidate& candidate, const StageShapes& shapes) {
  const train::RunOptions options = RunOptionsOf(request_, candidate);
  const train::StageWork work = train::StageWorkOf(shapes, options);
  const double rate = request_.flops * request_.efficiency;
  const auto seconds = [&](ActionKind kind, double flops, double attention) {
    train::RankTraffic traffic(candidate.mesh);
    train::AddPasses(shapes, kind, 1, traffic);
    const double tp =
        links_.SecondsAlong(candidate.mesh, TrafficAxis::kTp, traffic);
    const double cp =
        links_.SecondsAlong(candidate.mesh, TrafficAxis::kCp, traffic);
    return flops / rate + tp + std::max(cp - attention / rate, 0.0);
  };
  const bool whole = HasWholeBackwards(candidate);
  pipeline::StageCosts costs;
  costs.forward = seconds(ActionKind::kForward, work.forward, work.attention);
  costs.backward_input =
      seconds(whole ? ActionKind::kBackward : ActionKind::kBackwardInput,
              work.backward_input, 2 * work.attention);
  costs.backward_weight =
      whole ? work.backward_weight / rate
            : seconds(ActionKind::kBackwardWeight, work.backward_weight, 0);
  costs.communication = links_.Seconds(
      candidate.mesh, TrafficAxis::kPp, collectives::OpKind::kSend,
      static_cast<double>(shapes.row_bytes()), 1);
  return costs;
}

absl::StatusOr<const Pricer::PassCost*> Pricer::PassesOf(
    const Candidate& candidate) {
  const std::string key =
      absl::StrCat(PassesName(candidate), "/", candidate.mesh.dp);
  if (const auto found = passes_.find(key); found != passes_.end()) {
    return &found->second;
  }
  TESSERA_ASSIGN_OR_RETURN(const train::RunPlan* const filling,
                           PlanOf(candidate));
  TESSERA_ASSIGN_OR_RETURN(const train::RunPlan plan,
                           filling->With(RunOptionsOf(request_, candidate)));
  PassCost cost;
  // Stages of as many layers are alike but for their ends.
  std::map<std::tuple<int64_t, bool, bool>, pipeline::StageCosts> alike;
  for (int32_t stage = 0; stage < plan.stages(); ++stage) {
    const train::StageSpan span = plan.SpanOf(stage);
    const std::tuple kind = {span.layers.size(), span.is_first, span.is_last};
    if (alike.count(kind) == 0) {
      TESSERA_ASSIGN_OR_RETURN(const StageShapes shapes,
                               StageShapes::Of(plan.options(), {}, span));
      TESSERA_ASSIGN_OR_RETURN(alike[kind], StageCost(candidate, shapes));
    }
    cost.stages.push_back(alike[kind]);
  }
  for (int64_t rank = 0; rank < candidate.mesh.pp; ++rank) {
    double busy = 0;
    for (const train::StageSpan& span : plan.StagesOf(rank)) {
      const auto& costs = cost.stages[static_cast<size_t>(span.stage)];
      busy += costs.forward + costs.backward_input + costs.backward_weight;
    }
    cost.busiest = std::max(cost.busiest, busy);
  }
  return &passes_.emplace(key, std::move(cost)).first->second;
}

absl::StatusOr<double> Pricer::LeastSeconds(const Candidate& candidate) {
  TESSERA_ASSIGN_OR_RETURN(const PassCost* const passes, PassesOf(candidate));
  // A hair less, since sums are rounded in another order.
  return (1 - 1e-9) * passes->busiest *
         static_cast<double>(candidate.micro_batches(request_.batch));
}

double Pricer::DeviceBandwidth() const {
  double least = 0;
  for (const topology::HostGroup& group : request_.cluster.groups()) {
    const double bandwidth =
        topology::LinkAt(group.links, topology::LinkLevel::kDevice).bandwidth;
    least = least == 0 ? bandwidth : std::min(least, bandwidth);
  }
  return least;
}

absl::StatusOr<const Pricer::StateCost*> Pricer::StateOf(
    const Candidate& candidate, int64_t pipeline_rank) {
  const std::string key = absl::StrCat(
      PipelineName(candidate), "/", candidate.mesh.tp, "/", candidate.mesh.cp,
      "/", candidate.mesh.dp, "/", candidate.zero, "/", pipeline_rank);
  if (const auto found = states_.find(key); found != states_.end()) {
    return &found->second;
  }
  TESSERA_ASSIGN_OR_RETURN(const train::RunPlan* const filling,
                           PlanOf(candidate));
  TESSERA_ASSIGN_OR_RETURN(const train::RunPlan plan,
                           filling->With(RunOptionsOf(request_, candidate)));
  const RankPlace place = {.pp = pipeline_rank};
  TESSERA_ASSIGN_OR_RETURN(const train::StatePlan state,
                           train::StatePlan::Create(plan, place, {}));
  TESSERA_ASSIGN_OR_RETURN(const train::StateMemory memory,
                           train::PredictState(state));
  TESSERA_ASSIGN_OR_RETURN(const train::RankTraffic traffic,
                           train::PredictTraffic(plan, place, state));
  StateCost cost;
  cost.bytes = memory.in_memory();
  cost.data_seconds =
      links_.SecondsAlong(candidate.mesh, TrafficAxis::kDp, traffic);
  const int64_t sharers = candidate.zero > 0 ? state.data_ranks() : 1;
  const int64_t gradients =
      state.model().elements() / sharers * static_cast<int64_t>(sizeof(float));
  cost.optimizer_seconds =
      static_cast<double>(2 * memory.optimizer + gradients) / DeviceBandwidth();
  return &states_.emplace(key, cost).first->second;
}

absl::StatusOr<int64_t> Pricer::ActivationsOf(const Candidate& candidate,
                                              int64_t pipeline_rank) {
  const std::string key = absl::StrCat(
      PassesName(candidate), "/",
      FillingMicroBatches(candidate, request_.batch), "/", pipeline_rank);
  if (const auto found = activations_.find(key); found != activations_.end()) {
    return found->second;
  }
  TESSERA_ASSIGN_OR_RETURN(const train::RunPlan* const filling,
                           PlanOf(candidate));
  TESSERA_ASSIGN_OR_RETURN(const train::RunPlan plan,
                           filling->With(RunOptionsOf(request_, candidate)));
  TESSERA_ASSIGN_OR_RETURN(
      const train::ActivationMemory memory,
      train::PredictActivations(plan, {.pp = pipeline_rank}));
  return activations_[key] = memory.pools + memory.boundaries + memory.layers;
}

absl::StatusOr<int64_t> Pricer::Memory(const Candidate& candidate) {
  int64_t most = 0;
  for (const int64_t rank : RanksWithMost(candidate.mesh.pp)) {
    TESSERA_ASSIGN_OR_RETURN(const StateCost* const state,
                             StateOf(candidate, rank));
    most = std::max(most, state->bytes);
  }
  // Too much already.
  if (most > request_.memory) return most;
  for (const int64_t rank : RanksWithMost(candidate.mesh.pp)) {
    TESSERA_ASSIGN_OR_RETURN(const StateCost* const state,
                             StateOf(candidate, rank));
    TESSERA_ASSIGN_OR_RETURN(const int64_t activations,
                             ActivationsOf(candidate, rank));
    most = std::max(most, state->bytes + activations);
  }
  return most;
}

absl::StatusOr<int64_t> Pricer::ExactMemory(const Candidate& candidate) const {
  TESSERA_ASSIGN_OR_RETURN(
      const train::RunPlan plan,
      train::RunPlan::Create(RunOptionsOf(request_, candidate)));
  int64_t most = 0;
  for (int64_t rank = 0; rank < candidate.mesh.pp; ++rank) {
    TESSERA_ASSIGN_OR_RETURN(const train::RankPrediction prediction,
                             train::PredictRank(plan, {.pp = rank}, {}));
    most = std::max(most, prediction.peak_bytes());
  }
  return most;
}

absl::StatusOr<const pipeline::Schedule*> Pricer::ScheduleOf(
    const Candidate& candidate) {
  const int64_t count = candidate.micro_batches(request_.batch);
  const Pipeline key = {candidate.schedule, candidate.chunks, candidate.mesh.pp,
                        count};
  auto found = schedules_.find(key);
  if (found == schedules_.end()) {
    found = schedules_
                .emplace(key, pipeline::Generate(candidate.schedule,
                                                 {.ranks = candidate.mesh.pp,
                                                  .chunks = candidate.chunks,
                                                  .microbatches = count}))
                .first;
  }
  TESSERA_RETURN_IF_ERROR(found->second.status());
  return &*found->second;
}

absl::StatusOr<const Pricer::PipelineCost*> Pricer::Simulated(
    const Candidate& candidate) {
  const std::string key =
      absl::StrCat(PassesName(candidate), "/", candidate.mesh.dp);
  if (const auto found = simulated_.find(key); found != simulated_.end()) {
    return &found->second;
  }
  TESSERA_ASSIGN_OR_RETURN(const PassCost* const passes, PassesOf(candidate));
  TESSERA_ASSIGN_OR_RETURN(const pipeline::Schedule* const schedule,
                           ScheduleOf(candidate));
  pipeline::Costs costs;
  costs.stages = passes->stages;
  TESSERA_ASSIGN_OR_RETURN(
      const pipeline::Timeline timeline,
      pipeline::Simulate(*schedule, costs, {.traces = false}));
  double busy = 0;
  for (const pipeline::RankTimeline& rank : timeline.ranks) busy += rank.busy;
  busy /= static_cast<double>(timeline.ranks.size());
  const PipelineCost cost = {timeline.makespan, 1 - busy / timeline.makespan};
  return &simulated_.emplace(key, cost).first->second;
}

absl::StatusOr<StepSeconds> Pricer::Time(const Candidate& candidate) {
  StepSeconds step;
  for (const int64_t rank : RanksWithMost(candidate.mesh.pp)) {
    TESSERA_ASSIGN_OR_RETURN(const StateCost* const state,
                             StateOf(candidate, rank));
    step.data = std::max(step.data, state->data_seconds);
    step.optimizer = std::max(step.optimizer, state->optimizer_seconds);
  }
  TESSERA_ASSIGN_OR_RETURN(const PipelineCost* const cost,
                           Simulated(candidate));
  step.pipeline = cost->seconds;
  step.bubble = cost->bubble;
  return step;
}

}  // namespace tessera::plan
