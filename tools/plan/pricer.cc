#include "tools/plan/pricer.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/tier/accounting.h"
#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"
#include "tensor_parallel/blocks/predict_block.h"
#include "tools/plan/traffic.h"
#include "tools/train/model/llama_stage.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/predict/predict_rank.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/predict_state.h"

namespace tessera::plan {
namespace {

using collectives::OpKind;
using pipeline::ActionKind;
using train::RankPlace;
using train::StageShapes;
using train::TrafficAxis;

// True if backward passes are not split, so that shared messages are sent only
// once.
bool HasWholeBackwards(const Candidate& candidate) {
  return candidate.schedule == "1f1b" ||
         candidate.schedule == "interleaved_1f1b";
}

// The number of micro-batches that fill the pipeline, or all if there are
// fewer.
int64_t FillingMicroBatches(const Candidate& candidate, int64_t batch) {
  return std::min(candidate.micro_batches(batch), 2 * candidate.mesh.pp);
}

// The first two and the last two ranks. The ranks between have at most as many
// layers as the second rank, and no more micro-batches.
std::vector<int64_t> RanksWithMost(int64_t pp) {
  const std::set<int64_t> ranks = {0, std::min<int64_t>(1, pp - 1),
                                   std::max<int64_t>(pp - 2, 0), pp - 1};
  return {ranks.begin(), ranks.end()};
}

std::string PipelineName(const Candidate& c) {
  return absl::StrCat(c.schedule, "/", c.chunks, "/", c.mesh.pp);
}

std::string PassesName(const Candidate& c) {
  return absl::StrCat(PipelineName(c), "/", c.mesh.tp, "/", c.mesh.cp, "/",
                      c.mesh.ep, "/", c.micro_batch, "/",
                      static_cast<int>(c.recompute));
}

double LeastDeviceBandwidth(const topology::Cluster& cluster) {
  double least = 0;
  for (const topology::HostGroup& group : cluster.groups()) {
    const double bandwidth =
        topology::LinkAt(group.links, topology::LinkLevel::kDevice).bandwidth;
    least = least == 0 ? bandwidth : std::min(least, bandwidth);
  }
  return least;
}

}  // namespace

DeviceRates RatesOf(const PlanRequest& request) {
  if (request.efficiency > 0) {
    return DeviceRates::Flat(request.flops, request.efficiency);
  }
  return DeviceRates::Gpu(
      {.flops = request.flops,
       .memory_bandwidth = LeastDeviceBandwidth(request.cluster)},
      request.dtype);
}

absl::StatusOr<const train::PipelinePlan*> Pricer::PlanOf(
    const Candidate& candidate) {
  const int64_t count = FillingMicroBatches(candidate, request_.batch);
  const Pipeline key = {candidate.schedule, candidate.chunks, candidate.mesh.pp,
                        count};
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    train::RunOptions options = RunOptionsOf(request_, candidate);
    options.batch = options.mesh.dp * options.micro_batch * count;
    found = plans_.emplace(key, train::PipelinePlan::Create(options)).first;
  }
  TESSERA_RETURN_IF_ERROR(found->second.status());
  return &*found->second;
}

// The cost of the passes of a stage, including messages between its ranks.
absl::StatusOr<pipeline::StageCosts> Pricer::StageCost(
    const Candidate& candidate, const StageShapes& shapes) {
  const PassSeconds pass =
      rates_.SecondsOf(shapes, RunOptionsOf(request_, candidate));
  const auto with_messages = [&](ActionKind kind, double computed,
                                 double attention) {
    train::RankTraffic traffic(candidate.mesh);
    AddPasses(shapes, kind, 1, traffic);
    const double tp =
        links_.SecondsAlong(candidate.mesh, TrafficAxis::kTp, traffic);
    const double cp =
        links_.SecondsAlong(candidate.mesh, TrafficAxis::kCp, traffic);
    const double ep =
        links_.SecondsAlong(candidate.mesh, TrafficAxis::kEp, traffic);
    return computed + tp + ep + std::max(cp - attention, 0.0);
  };
  const bool whole = HasWholeBackwards(candidate);
  pipeline::StageCosts costs;
  costs.forward =
      with_messages(ActionKind::kForward, pass.forward, pass.attention);
  costs.backward_input =
      with_messages(whole ? ActionKind::kBackward : ActionKind::kBackwardInput,
                    pass.backward_input, pass.backward_attention);
  costs.backward_weight = whole ? pass.backward_weight
                                : with_messages(ActionKind::kBackwardWeight,
                                                pass.backward_weight, 0);
  costs.communication =
      links_.Seconds(candidate.mesh, TrafficAxis::kPp, OpKind::kSend,
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
  TESSERA_ASSIGN_OR_RETURN(const train::PipelinePlan* const filling,
                           PlanOf(candidate));
  const train::PipelinePlan plan =
      filling->With(RunOptionsOf(request_, candidate));
  PassCost cost;
  // Stages with equal numbers of layers of both kinds cost the same, except for
  // the first and the last stage.
  std::map<std::tuple<int64_t, int64_t, bool, bool>, pipeline::StageCosts>
      alike;
  for (int32_t stage = 0; stage < plan.stages(); ++stage) {
    const train::StageSpan span = plan.SpanOf(stage);
    TESSERA_ASSIGN_OR_RETURN(const StageShapes shapes,
                             StageShapes::Of(plan.options(), {}, span));
    const std::tuple kind = {shapes.layers, shapes.mixture.layers,
                             span.is_first, span.is_last};
    if (alike.count(kind) == 0) {
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
    cost.ranks.push_back(busy);
  }
  return &passes_.emplace(key, std::move(cost)).first->second;
}

absl::StatusOr<double> Pricer::LeastSeconds(const Candidate& candidate) {
  TESSERA_ASSIGN_OR_RETURN(const PassCost* const passes, PassesOf(candidate));
  // Slightly reduced, because Time adds in another order and rounds
  // differently.
  return (1 - 1e-9) *
         *std::max_element(passes->ranks.begin(), passes->ranks.end()) *
         static_cast<double>(candidate.micro_batches(request_.batch));
}

double Pricer::DeviceBandwidth() const {
  return LeastDeviceBandwidth(request_.cluster);
}

namespace {

// The weights of a stage on a rank: all except the experts, and the experts.
int64_t WeightsOf(const StageShapes& s) {
  const train::MixtureShapes& mixture = s.mixture;
  const int64_t units = 3 * s.dense_units * (s.layers - mixture.layers) +
                        (3 * mixture.shared + mixture.experts) * mixture.layers;
  const int64_t layers = s.layers * (s.qkv + s.query + 2) + units;
  const int64_t table = s.vocabulary * s.hidden;
  return s.hidden * layers + (s.is_first ? table : 0) +
         (s.is_last ? s.hidden + (s.tied_here ? 0 : table) : 0);
}
int64_t ExpertWeightsOf(const StageShapes& s) {
  return s.mixture.layers * s.mixture.experts / s.mixture.ranks * 3 *
         s.mixture.units * s.hidden;
}

// The weights of a pipeline rank.
struct Held {
  int64_t weights = 0;  // Sharded over data ranks.
  int64_t experts = 0;  // Sharded over ranks with the same experts.
};

absl::StatusOr<Held> HeldBy(const train::PipelinePlan& plan, int64_t rank) {
  Held held;
  for (const train::StageSpan& span : plan.StagesOf(rank)) {
    TESSERA_ASSIGN_OR_RETURN(
        const StageShapes shapes,
        StageShapes::Of(plan.options(), {.pp = rank}, span));
    held.weights += WeightsOf(shapes);
    (shapes.mixture.ranks > 1 ? held.experts : held.weights) +=
        ExpertWeightsOf(shapes);
  }
  return held;
}

// The bytes of `weights` weights, their gradients and AdamW's state per rank.
// The division of a single parameter rounds up least.
absl::StatusOr<int64_t> StateBytes(const train::RunOptions& run,
                                   int64_t weights, int64_t sharers) {
  if (weights == 0) return 0;
  TESSERA_ASSIGN_OR_RETURN(
      const zero3::ModelParameters model,
      zero3::ModelParameters::Builder()
          .Add({.name = "weights", .shape = {weights}, .dtype = run.dtype})
          .Build());
  TESSERA_ASSIGN_OR_RETURN(const offload::Usage usage,
                           zero3::PredictState(model, run.state, sharers));
  return usage.of(offload::Purpose::kParameters).current +
         usage.of(offload::Purpose::kGradients).current +
         usage.of(offload::Purpose::kOptimizer).current;
}

}  // namespace

// The bytes that a layer holds for each micro-batch in flight. If a model has
// dense layers and mixtures, those of the cheaper kind.
absl::StatusOr<int64_t> Pricer::LayerBytes(const Candidate& candidate) {
  const std::string key = absl::StrCat(
      candidate.mesh.tp, "/", candidate.mesh.cp, "/", candidate.micro_batch,
      "/", static_cast<int>(candidate.recompute));
  if (const auto found = layers_.find(key); found != layers_.end()) {
    return found->second;
  }
  const train::RunOptions run = RunOptionsOf(request_, candidate);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const int64_t layer : {int64_t{0}, run.model.layers - 1}) {
    TESSERA_ASSIGN_OR_RETURN(const tensor_parallel::BlockMemory memory,
                             tensor_parallel::PredictBlock(
                                 train::BlockOptionsOf(run, layer),
                                 {.sequences = run.micro_batch,
                                  .length = run.length,
                                  .tensor_ranks = run.mesh.tp,
                                  .sequence_parallel = run.sequence_parallel,
                                  .overlap_chunks = run.overlap_chunks,
                                  .context_ranks = run.mesh.cp,
                                  .zigzag = run.zigzag,
                                  .algorithm = run.context_attention}));
    least = std::min(least, memory.held);
  }
  return layers_.emplace(key, least).first->second;
}

// The largest number of (layer, micro-batch) pairs that a rank holds between
// forward and backward.
int64_t Pricer::MostInFlight(const train::PipelinePlan& plan, int64_t rank) {
  std::map<int32_t, int64_t> layers;
  for (const train::StageSpan& span : plan.StagesOf(rank)) {
    layers[span.stage] = span.layers.size();
  }
  int64_t held = 0, most = 0;
  for (const pipeline::Action& action :
       plan.schedule().ranks[static_cast<size_t>(rank)]) {
    if (action.kind == ActionKind::kForward) {
      held += layers[action.stage];
      most = std::max(most, held);
    } else if (action.kind == ActionKind::kBackward ||
               action.kind == ActionKind::kBackwardInput) {
      held -= layers[action.stage];
    }
  }
  return most;
}

absl::StatusOr<int64_t> Pricer::LeastMemory(const Candidate& candidate) {
  TESSERA_ASSIGN_OR_RETURN(const train::PipelinePlan* const filling,
                           PlanOf(candidate));
  const train::PipelinePlan plan =
      filling->With(RunOptionsOf(request_, candidate));
  int64_t most = 0;
  // The first and the last rank also have the embedding and the head.
  for (const int64_t rank : {int64_t{0}, candidate.mesh.pp - 1}) {
    TESSERA_ASSIGN_OR_RETURN(const Held held, HeldBy(plan, rank));
    TESSERA_ASSIGN_OR_RETURN(
        int64_t state,
        StateBytes(plan.options(), held.weights, candidate.mesh.shard_ranks()));
    TESSERA_ASSIGN_OR_RETURN(
        const int64_t experts,
        StateBytes(plan.options(), held.experts, candidate.mesh.edp()));
    state += experts;
    most = std::max(most, state);
    if (most > request_.memory) return most;
    TESSERA_ASSIGN_OR_RETURN(const int64_t layer, LayerBytes(candidate));
    most = std::max(most, state + MostInFlight(plan, rank) * layer);
  }
  return most;
}

// Predicts the pipeline ranks `ranks` in a step of `micro_batches`
// micro-batches.
absl::StatusOr<std::vector<train::RankPrediction>> Pricer::RunDry(
    const Candidate& candidate, int64_t micro_batches,
    const std::vector<int64_t>& ranks) {
  dry_runs_ += static_cast<int64_t>(ranks.size());
  train::RunOptions run = RunOptionsOf(request_, candidate);
  run.batch = run.mesh.dp * run.micro_batch * micro_batches;
  TESSERA_ASSIGN_OR_RETURN(const train::PipelinePlan plan,
                           train::PipelinePlan::Create(run));
  std::vector<RankPlace> places;
  for (const int64_t rank : ranks) places.push_back({.pp = rank});
  return train::PredictRanks(plan, places, {});
}

// The seconds that each rank needs to gather weights for a further micro-batch.
// They do not depend on the size of micro-batches, on recomputation or on when
// gradients are reduced.
absl::StatusOr<const std::vector<double>*> Pricer::GathersAgain(
    const Candidate& candidate,
    const std::vector<train::RankPrediction>& filled) {
  const bool gathers = candidate.zero == 3 &&
                       candidate.mesh.shard_ranks() > 1 &&
                       candidate.micro_batches(request_.batch) > 1;
  const int64_t filling = FillingMicroBatches(candidate, request_.batch);
  const std::string key =
      gathers ? absl::StrCat(PipelineName(candidate), "/", candidate.mesh.tp,
                             "/", candidate.mesh.cp, "/", candidate.mesh.dp,
                             "/", candidate.mesh.ep, "/", filling)
              : absl::StrCat("none of ", filled.size());
  if (const auto found = gathers_.find(key); found != gathers_.end()) {
    return &found->second;
  }
  std::vector<double> seconds(filled.size(), 0.0);
  if (gathers) {
    Candidate light = candidate;
    light.recompute = tensor_parallel::Recompute::kNone;
    light.reduce = train::ReduceChoice::kLastMicroBatch;
    const int64_t more = candidate.mesh.pp;
    TESSERA_ASSIGN_OR_RETURN(
        const auto longer,
        RunDry(light, filling + more, RanksWithMost(candidate.mesh.pp)));
    const auto gathered = [&](const train::RankPrediction& one) {
      return DataSecondsOf(candidate, OpKind::kAllGather, one.traffic);
    };
    for (size_t i = 0; i < seconds.size(); ++i) {
      seconds[i] = (gathered(longer[i]) - gathered(filled[i])) /
                   static_cast<double>(more);
    }
  }
  return &gathers_.emplace(key, std::move(seconds)).first->second;
}

// The time along the data ranks, plus the time along the ranks with the same
// experts.
double Pricer::DataSecondsOf(const Candidate& candidate, OpKind kind,
                             const train::RankTraffic& traffic) {
  return links_.SecondsOf(candidate.mesh, TrafficAxis::kDp, kind, traffic) +
         links_.SecondsOf(candidate.mesh, TrafficAxis::kEdp, kind, traffic);
}

// The time of a step's data-parallel traffic that computation does not hide.
// `rank` was run with the micro-batches that fill the pipeline; each further
// micro-batch gathers for `gathers` and computes for `computed` seconds.
double Pricer::DataSeconds(const Candidate& candidate,
                           const train::RankPrediction& rank, double gathers,
                           double computed) {
  const auto filling =
      static_cast<double>(FillingMicroBatches(candidate, request_.batch));
  double again = gathers;
  if (candidate.reduce == train::ReduceChoice::kEachMicroBatch) {
    again += DataSecondsOf(candidate, OpKind::kReduceScatter, rank.traffic) /
             filling;
  }
  const double first =
      links_.SecondsAlong(candidate.mesh, TrafficAxis::kDp, rank.traffic) +
      links_.SecondsAlong(candidate.mesh, TrafficAxis::kEdp, rank.traffic) -
      again * (filling - 1);
  const auto further =
      static_cast<double>(candidate.micro_batches(request_.batch) - 1);
  return first + std::max(again - computed, 0.0) * further;
}

absl::StatusOr<const Pricer::RankCost*> Pricer::RanksOf(
    const Candidate& candidate) {
  const std::string key =
      absl::StrCat(PassesName(candidate), "/", candidate.mesh.dp, "/",
                   candidate.zero, ReduceNameOf(candidate));
  if (const auto found = ranks_.find(key); found != ranks_.end()) {
    return &found->second;
  }
  const int64_t filling = FillingMicroBatches(candidate, request_.batch);
  const std::vector<int64_t> all = RanksWithMost(candidate.mesh.pp);
  RankCost cost;
  std::vector<train::RankPrediction> ranks;
  // Skips the other ranks if the first rank exceeds the memory.
  for (const auto& part : {std::vector(all.begin(), all.begin() + 1),
                           std::vector(all.begin() + 1, all.end())}) {
    if (part.empty()) continue;
    TESSERA_ASSIGN_OR_RETURN(const auto some, RunDry(candidate, filling, part));
    for (const train::RankPrediction& one : some) {
      cost.bytes = std::max(cost.bytes, one.peak_bytes());
      ranks.push_back(one);
    }
    if (cost.bytes > request_.memory) {
      return &ranks_.emplace(key, cost).first->second;
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double>* const gathers,
                           GathersAgain(candidate, ranks));
  TESSERA_ASSIGN_OR_RETURN(const PassCost* const passes, PassesOf(candidate));
  TESSERA_ASSIGN_OR_RETURN(const train::PipelinePlan* const plan,
                           PlanOf(candidate));
  const train::PipelinePlan own = plan->With(RunOptionsOf(request_, candidate));
  const auto part = [&](int64_t weights, int64_t sharers) {
    return candidate.zero > 0 ? weights / sharers : weights;
  };
  for (size_t i = 0; i < ranks.size(); ++i) {
    const train::RankPrediction& one = ranks[i];
    TESSERA_ASSIGN_OR_RETURN(const Held held, HeldBy(own, one.place.pp));
    cost.data_seconds =
        std::max(cost.data_seconds,
                 DataSeconds(candidate, one, (*gathers)[i],
                             passes->ranks[static_cast<size_t>(one.place.pp)]));
    const int64_t gradients =
        (part(one.parameters - held.experts, candidate.mesh.shard_ranks()) +
         part(held.experts, candidate.mesh.edp())) *
        static_cast<int64_t>(sizeof(float));
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

// Counts the reduction of gradients once or per micro-batch, one gather of the
// weights, and one pass of the optimizer over its state.
absl::StatusOr<StepSeconds> Pricer::LeastTime(const Candidate& candidate) {
  TESSERA_ASSIGN_OR_RETURN(const PipelineCost* const cost,
                           Simulated(candidate));
  TESSERA_ASSIGN_OR_RETURN(const train::PipelinePlan* const filling,
                           PlanOf(candidate));
  TESSERA_ASSIGN_OR_RETURN(const PassCost* const passes, PassesOf(candidate));
  const train::PipelinePlan plan =
      filling->With(RunOptionsOf(request_, candidate));
  StepSeconds step = {.pipeline = cost->seconds, .bubble = cost->bubble};
  // The time to move all weights and experts of `held`, with `bytes` bytes
  // each.
  const auto along_data = [&](OpKind kind, const Held& held, int64_t bytes) {
    return links_.Seconds(candidate.mesh, TrafficAxis::kDp, kind,
                          static_cast<double>(bytes * held.weights), 1) +
           links_.Seconds(candidate.mesh, TrafficAxis::kEdp, kind,
                          static_cast<double>(bytes * held.experts), 1);
  };
  const int64_t sharers = candidate.mesh.shard_ranks();
  for (const int64_t rank : {int64_t{0}, candidate.mesh.pp - 1}) {
    TESSERA_ASSIGN_OR_RETURN(const Held held, HeldBy(plan, rank));
    double data = 0;
    if (sharers > 1 && candidate.zero == 0) {
      data = along_data(OpKind::kAllReduce, held, 4);
    } else if (sharers > 1) {
      const double reduced = along_data(OpKind::kReduceScatter, held, 4);
      data = reduced +
             along_data(OpKind::kAllGather, held, SizeInBytes(request_.dtype));
      if (candidate.reduce == train::ReduceChoice::kEachMicroBatch) {
        const double computed = passes->ranks[static_cast<size_t>(rank)];
        data +=
            std::max(reduced - computed, 0.0) *
            static_cast<double>(candidate.micro_batches(request_.batch) - 1);
      }
    }
    step.data = std::max(step.data, data);
    const auto touched = [&](int64_t weights,
                             int64_t ranks) -> absl::StatusOr<int64_t> {
      TESSERA_ASSIGN_OR_RETURN(
          const int64_t moment,
          offload::MomentBytes(plan.options().state.moments, weights));
      return (4 * moment + 4 * weights) / (candidate.zero > 0 ? ranks : 1);
    };
    TESSERA_ASSIGN_OR_RETURN(const int64_t dense,
                             touched(held.weights, sharers));
    TESSERA_ASSIGN_OR_RETURN(const int64_t experts,
                             touched(held.experts, candidate.mesh.edp()));
    step.optimizer =
        std::max(step.optimizer,
                 static_cast<double>(dense + experts) / DeviceBandwidth());
  }
  // Slightly reduced, because Time adds in another order and rounds
  // differently.
  step.data *= 1 - 1e-9;
  step.optimizer *= 1 - 1e-9;
  return step;
}

absl::StatusOr<StepSeconds> Pricer::Time(const Candidate& candidate) {
  TESSERA_ASSIGN_OR_RETURN(const PipelineCost* const pipeline,
                           Simulated(candidate));
  TESSERA_ASSIGN_OR_RETURN(const RankCost* const cost, RanksOf(candidate));
  StepSeconds step = {.pipeline = pipeline->seconds,
                      .bubble = pipeline->bubble};
  step.data = cost->data_seconds;
  step.optimizer = cost->optimizer_seconds;
  return step;
}

}  // namespace tessera::plan
