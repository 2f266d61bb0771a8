#include "tools/plan/pricer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/optimizer/state/moment.h"
#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"
#include "tools/plan/pass_traffic.h"
#include "tools/train/predict/predict_rank.h"
#include "tools/train/predict/stage_work.h"

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
    AddPasses(shapes, kind, 1, traffic);
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

namespace {

// Of this rank, as whole as its stages compute with them.
int64_t WeightsOf(const StageShapes& s) {
  const int64_t layer =
      s.hidden * (s.qkv + s.query + s.gate_up + s.intermediate + 2);
  const int64_t table = s.vocabulary * s.hidden;
  return s.layers * layer + (s.is_first ? table : 0) +
         (s.is_last ? s.hidden + (s.tied_here ? 0 : table) : 0);
}

// What ZeRO shares out (Rajbhandari et al., arXiv 1910.02054, section 5), of
// AdamW, rounded down.
absl::StatusOr<int64_t> StateBytes(const train::RunOptions& run,
                                   int64_t weights) {
  const int64_t sharers = run.mesh.dp * run.mesh.cp;
  const int64_t width = SizeInBytes(run.dtype);
  const int64_t master = width < 4 ? 4 * weights : 0;
  TESSERA_ASSIGN_OR_RETURN(const int64_t moment,
                           offload::MomentBytes(run.state.moments, weights));
  const int64_t optimizer = master + 2 * moment;
  const auto shared = [&](int64_t bytes, int stage) {
    return run.state.stage >= stage ? bytes / sharers : bytes;
  };
  return shared(width * weights, 3) + shared(4 * weights, 2) +
         shared(optimizer, 1);
}

}  // namespace

// What pools and layers hold of a layer after one micro-batch: what a second
// layer adds.
absl::StatusOr<int64_t> Pricer::LayerBytes(const Candidate& candidate) {
  const std::string key = absl::StrCat(
      candidate.mesh.tp, "/", candidate.mesh.cp, "/", candidate.micro_batch,
      "/", static_cast<int>(candidate.recompute));
  if (const auto found = layer_bytes_.find(key); found != layer_bytes_.end()) {
    return found->second;
  }
  int64_t bytes[2];
  for (const int64_t layers : {1, 2}) {
    train::RunOptions run = RunOptionsOf(request_, candidate);
    run.mesh.dp = 1;
    run.mesh.pp = 1;
    run.schedule = "1f1b";
    run.chunks = 1;
    run.batch = run.micro_batch;
    run.state.stage = 0;
    run.model.layers = layers;
    TESSERA_ASSIGN_OR_RETURN(const train::RunPlan plan,
                             train::RunPlan::Create(run));
    TESSERA_ASSIGN_OR_RETURN(const train::RankPrediction rank,
                             train::PredictRank(plan, {}, {}));
    bytes[layers - 1] = rank.activations.pools + rank.activations.layers;
  }
  return layer_bytes_[key] = std::max<int64_t>(bytes[1] - bytes[0], 0);
}

absl::StatusOr<int64_t> Pricer::LeastMemory(const Candidate& candidate) {
  TESSERA_ASSIGN_OR_RETURN(const train::RunPlan* const filling,
                           PlanOf(candidate));
  TESSERA_ASSIGN_OR_RETURN(const train::RunPlan plan,
                           filling->With(RunOptionsOf(request_, candidate)));
  int64_t most = 0;
  // The first and the last have the tables as well.
  for (const int64_t rank : {int64_t{0}, candidate.mesh.pp - 1}) {
    int64_t weights = 0, layers = 0;
    for (const train::StageSpan& span : plan.StagesOf(rank)) {
      TESSERA_ASSIGN_OR_RETURN(
          const StageShapes shapes,
          StageShapes::Of(plan.options(), {.pp = rank}, span));
      weights += WeightsOf(shapes);
      layers += shapes.layers;
    }
    TESSERA_ASSIGN_OR_RETURN(const int64_t state,
                             StateBytes(plan.options(), weights));
    most = std::max(most, state);
    if (most > request_.memory) return most;
    TESSERA_ASSIGN_OR_RETURN(const int64_t layer, LayerBytes(candidate));
    most = std::max(most, state + layers * layer);
  }
  return most;
}

absl::StatusOr<const Pricer::RankCost*> Pricer::RanksOf(
    const Candidate& candidate) {
  const std::string key = absl::StrCat(PassesName(candidate), "/",
                                       candidate.mesh.dp, "/", candidate.zero);
  if (const auto found = ranks_.find(key); found != ranks_.end()) {
    return &found->second;
  }
  TESSERA_ASSIGN_OR_RETURN(const train::RunPlan* const filling,
                           PlanOf(candidate));
  train::RunOptions run = RunOptionsOf(request_, candidate);
  run.batch = run.mesh.dp * run.micro_batch *
              FillingMicroBatches(candidate, request_.batch);
  TESSERA_ASSIGN_OR_RETURN(const train::RunPlan plan, filling->With(run));
  RankCost cost;
  for (const int64_t rank : RanksWithMost(candidate.mesh.pp)) {
    TESSERA_ASSIGN_OR_RETURN(const train::RankPrediction one,
                             train::PredictRank(plan, {.pp = rank}, {}));
    cost.bytes = std::max(cost.bytes, one.peak_bytes());
    cost.data_seconds = std::max(
        cost.data_seconds,
        links_.SecondsAlong(candidate.mesh, TrafficAxis::kDp, one.traffic));
    const int64_t sharers =
        candidate.zero > 0 ? candidate.mesh.dp * candidate.mesh.cp : 1;
    const int64_t gradients =
        one.parameters / sharers * static_cast<int64_t>(sizeof(float));
    cost.optimizer_seconds =
        std::max(cost.optimizer_seconds,
                 static_cast<double>(2 * one.state.optimizer + gradients) /
                     DeviceBandwidth());
  }
  return &ranks_.emplace(key, cost).first->second;
}

absl::StatusOr<int64_t> Pricer::Memory(const Candidate& candidate) {
  TESSERA_ASSIGN_OR_RETURN(const RankCost* const cost, RanksOf(candidate));
  return cost->bytes;
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

absl::StatusOr<StepSeconds> Pricer::PipelineTime(const Candidate& candidate) {
  TESSERA_ASSIGN_OR_RETURN(const PipelineCost* const cost,
                           Simulated(candidate));
  return StepSeconds{.pipeline = cost->seconds, .bubble = cost->bubble};
}

absl::StatusOr<StepSeconds> Pricer::Time(const Candidate& candidate) {
  TESSERA_ASSIGN_OR_RETURN(StepSeconds step, PipelineTime(candidate));
  TESSERA_ASSIGN_OR_RETURN(const RankCost* const cost, RanksOf(candidate));
  step.data = cost->data_seconds;
  step.optimizer = cost->optimizer_seconds;
  return step;
}

}  // namespace tessera::plan
