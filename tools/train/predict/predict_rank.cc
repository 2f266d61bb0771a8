#include "tools/train/predict/predict_rank.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device/host_device.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/counting/counting_engine.h"
#include "offload/tier/accounting.h"
#include "offload/tier/budgeted_memory.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/spill_tier.h"
#include "pipeline/schedule/schedule.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/text/corpus.h"
#include "tools/text/samples.h"
#include "tools/text/tokenizer.h"
#include "tools/train/checkpoint/memory_copies.h"
#include "tools/train/predict/counting_tier.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/settings/run_schedule.h"
#include "tools/train/step/train_rank.h"
#include "zero3/checkpoint/state_blocks.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/statistics.h"

namespace tessera::train {
namespace {

using collectives::Communicator;
using offload::Purpose;

// Encodes everything as token 0, which every vocabulary has.
class FirstToken final : public text::Tokenizer {
 public:
  int64_t vocabulary_size() const override { return 1; }
  std::optional<text::TokenId> end_of_text() const override { return {}; }
  void AppendTokens(std::string_view text, text::SpecialTokens,
                    std::vector<text::TokenId>& ids) const override {
    ids.resize(ids.size() + text.size(), 0);
  }
  void AppendText(std::span<const text::TokenId>, std::string&) const override {
  }
};

absl::StatusOr<text::Samples> SomeSamples(int64_t length) {
  const std::string texts[] = {
      std::string(static_cast<size_t>(std::max<int64_t>(length, 0)) + 1, 'a')};
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const text::Corpus> corpus,
                           text::Corpus::FromTexts(texts, FirstToken()));
  return text::Samples::Create(std::move(corpus), {.sequence = length});
}

// Allocates from another resource and counts its own allocations.
std::shared_ptr<offload::BudgetedMemory> CountedPart(
    std::shared_ptr<MemoryResource> whole) {
  return std::make_shared<offload::BudgetedMemory>(
      std::move(whole),
      std::make_shared<offload::Accounting>("part", offload::kUnlimited),
      Purpose::kBuffers);
}

// The maximum number of micro-batches of a stage that are in flight, from the
// start of their forward to the end of their backward.
int64_t MostMicroBatches(const std::vector<pipeline::Action>& actions) {
  std::map<int32_t, int64_t> held;
  int64_t most = 0;
  for (const pipeline::Action& action : actions) {
    if (action.kind == pipeline::ActionKind::kForward) {
      most = std::max(most, ++held[action.stage]);
    } else if (pipeline::GivesWeightGradient(action.kind)) {
      --held[action.stage];
    }
  }
  return most;
}

class DryRun {
 public:
  DryRun(const PipelinePlan& plan, const RankPlace& place,
         const StateHomes& homes, MemoryAccess access)
      : options_(plan.options()),
        place_(place),
        homes_(homes),
        memory_(std::make_shared<CountingMemory>(access)),
        on_device_(CountedPart(memory_)),
        on_host_(CountedPart(memory_)),
        device_(on_device_, on_host_, /*is_immediate=*/!homes.on_device),
        working_(CountedPart(on_device_)) {
    // A step with the whole batch needs most memory.
    options_.batch_warmup_steps = 0;
    options_.device_budget = 0;
    SetTiers();
  }

  // The same for all ranks with this plan and these homes.
  absl::StatusOr<std::shared_ptr<const RunSchedule>> MakeSchedule() const {
    TESSERA_ASSIGN_OR_RETURN(RunSchedule steps, RunSchedule::Create(options_));
    return std::make_shared<const RunSchedule>(std::move(steps));
  }
  absl::Status Run(std::shared_ptr<const RunSchedule> steps);
  RankPrediction Result() const;
  // The bytes that a checkpoint copies, by data rank.
  absl::StatusOr<std::vector<int64_t>> Snapshots() const;

 private:
  void SetTiers();
  StateMemory State() const;
  ActivationMemory Activations() const;

  RunOptions options_;
  std::shared_ptr<const RunSchedule> steps_;
  const RankPlace place_;
  const StateHomes homes_;
  const std::shared_ptr<CountingMemory> memory_;
  const std::shared_ptr<offload::BudgetedMemory> on_device_;
  const std::shared_ptr<offload::BudgetedMemory> on_host_;
  CountingDevice device_;
  std::unique_ptr<Queue> queue_;
  // For pools and layers.
  const std::shared_ptr<offload::BudgetedMemory> working_;
  std::shared_ptr<offload::Accounting> host_;
  const std::shared_ptr<offload::Accounting> files_ =
      std::make_shared<offload::Accounting>("files", offload::kUnlimited);
  std::shared_ptr<offload::MemoryTier> host_tier_, file_tier_;
  std::unique_ptr<Communicator> world_;
  std::optional<tensor_parallel::Ops> ops_;
  std::optional<text::Samples> samples_;
  std::unique_ptr<TrainRank> rank_;
  std::optional<RankTraffic> traffic_;  // Of the step.
};

void DryRun::SetTiers() {
  // The ratio of compression is unknown, so compressed blocks are not refused.
  const bool is_bounded = homes_.spills || !homes_.compressed;
  host_ = std::make_shared<offload::Accounting>(
      "host", is_bounded ? homes_.host_budget : offload::kUnlimited);
  host_tier_ = std::make_shared<CountingTier>(host_, on_host_,
                                              /*in_place=*/!homes_.compressed);
  file_tier_ = std::make_shared<CountingTier>(files_);
  if (homes_.spills) {
    host_tier_ = std::make_shared<offload::SpillTier>(host_tier_, file_tier_);
  }
  const auto tier_of = [this](StateHome home) {
    return home == StateHome::kHost    ? host_tier_.get()
           : home == StateHome::kFiles ? file_tier_.get()
                                       : nullptr;
  };
  zero3::ShardedStateOptions& state = options_.state;
  state.parameter_tier = tier_of(homes_.parameters);
  state.gradient_tier = tier_of(homes_.gradients);
  state.optimizer_tier = tier_of(homes_.optimizer);
  options_.activation_tier = tier_of(homes_.activations);
}

absl::Status DryRun::Run(std::shared_ptr<const RunSchedule> steps) {
  steps_ = std::move(steps);
  options_.memory = working_;
  TESSERA_ASSIGN_OR_RETURN(queue_, device_.CreateQueue("compute"));
  options_.state.ops = zero3::DryStateOps();
  options_.state.device = nullptr;
  options_.state.adamw.threads = 1;
  ops_.emplace(*queue_);
  TESSERA_ASSIGN_OR_RETURN(samples_, SomeSamples(options_.length));
  TESSERA_ASSIGN_OR_RETURN(
      auto engine, collectives::CreateCountingEngine(
                       {.rank = collectives::Rank(place_.RankIn(options_.mesh)),
                        .ranks = options_.mesh.world_size(),
                        .memory = memory_}));
  collectives::CommunicatorOptions communicator;
  communicator.recorded_operations = 1;
  TESSERA_ASSIGN_OR_RETURN(
      world_, Communicator::Create(std::move(engine), std::move(communicator)));
  TESSERA_ASSIGN_OR_RETURN(
      rank_, TrainRank::Create(*world_, options_, *steps_, *samples_, *ops_));
  const RankTraffic before = TrafficOf(*rank_);
  TESSERA_RETURN_IF_ERROR(rank_->Step().status());  // All steps are alike.
  traffic_ = TrafficOf(*rank_).Since(before);
  return absl::OkStatus();
}

StateMemory DryRun::State() const {
  const offload::Usage usage = rank_->state().usage();
  StateMemory memory;
  memory.parameters = usage.of(Purpose::kParameters).peak;
  memory.gradients = usage.of(Purpose::kGradients).peak;
  memory.optimizer = usage.of(Purpose::kOptimizer).peak;
  memory.buffers = usage.of(Purpose::kBuffers).peak;
  memory.host = homes_.pinned
                    ? homes_.host_budget
                    : std::min(host_->usage().peak, homes_.host_budget);
  memory.files = files_->usage().peak;
  if (homes_.has(StateHome::kFiles) || homes_.spills) {
    memory.staging = offload::FileTierOptions().bounce_bytes;
  }
  for (const ShardedModel::Part& part : rank_->model().parts()) {
    for (const zero3::BlockRange& block : BlocksToCopy(*part.state)) {
      memory.copy += block.bytes();
    }
  }
  return memory;
}

ActivationMemory DryRun::Activations() const {
  const pipeline::Executor& executor = rank_->executor();
  ActivationMemory memory;
  memory.boundaries = executor.timeline().peak_bytes;
  memory.pools = rank_->activation_bytes() - memory.boundaries;
  memory.layers = working_->usage().current - memory.pools;
  memory.micro_batches = MostMicroBatches(
      steps_->stages().schedule.ranks[static_cast<size_t>(place_.pp)]);
  return memory;
}

RankPrediction DryRun::Result() const {
  RankPrediction rank(options_.mesh);
  rank.place = place_;
  rank.placement = steps_->Describe();
  rank.parameters = rank_->model().parameter_count();
  std::vector<zero3::ModelParameter> weights;
  for (const ShardedModel::Part& part : rank_->model().parts()) {
    const auto& all = part.state->layout().model().all();
    weights.insert(weights.end(), all.begin(), all.end());
  }
  rank.weights = zero3::StatisticsOf(weights);
  rank.state = State();
  rank.activations = Activations();
  rank.held = memory_->peak_bytes();
  rank.device = on_device_->usage().peak;
  rank.host = on_host_->usage().peak;
  rank.traffic = *traffic_;
  return rank;
}

absl::StatusOr<std::vector<int64_t>> DryRun::Snapshots() const {
  constexpr int64_t kBlockElements = int64_t{1} << 20;
  const int64_t data_ranks = rank_->groups().shard->size();
  std::vector<int64_t> snapshots(static_cast<size_t>(data_ranks));
  for (const ShardedModel::Part& part : rank_->model().parts()) {
    const int64_t ranks =
        part.of_experts ? rank_->groups().edp->size() : data_ranks;
    for (int64_t r = 0; r < data_ranks; ++r) {
      // Expert ranks are adjacent and hold equally much.
      const topology::Rank own(r * ranks / data_ranks);
      TESSERA_ASSIGN_OR_RETURN(
          const zero3::StateShare share,
          zero3::ShareOf(part.state->options().stage, part.state->layout(), own,
                         ranks));
      for (const zero3::BlockRange& block : zero3::PlanBlocks(
               share, zero3::MomentsOf(*part.state), kBlockElements)) {
        snapshots[static_cast<size_t>(r)] += block.bytes();
      }
    }
  }
  return snapshots;
}

// The bytes that a rank copies for a checkpoint. Only the first replica writes.
int64_t SnapshotOf(const RankPlace& place, const MeshSizes& mesh,
                   const std::vector<int64_t>& snapshots) {
  if (place.dp >= mesh.dp_shard()) return 0;
  return snapshots[static_cast<size_t>(
      RankAlong(TrafficAxis::kDp, mesh, place))];
}

// The sizes, besides the plan, on which a rank's memory and messages depend.
absl::StatusOr<std::string> SizesOf(const PipelinePlan& plan,
                                    const RankPlace& place) {
  std::string sizes = absl::StrCat("pp", place.pp);
  for (const StageSpan& span : plan.StagesOf(place.pp)) {
    TESSERA_ASSIGN_OR_RETURN(const StageShapes s,
                             StageShapes::Of(plan.options(), place, span));
    absl::StrAppend(&sizes, "/", span.stage, ",", s.tokens, ",", s.rows, ",",
                    s.heads, ",", s.kv_heads, ",", s.qkv, ",", s.query, ",",
                    s.gate_up, ",", s.intermediate, ",", s.vocabulary, ",",
                    s.shared_kv);
  }
  // Ranks have different shards.
  if (plan.options().state.layout != zero3::LayoutKind::kChunks) {
    absl::StrAppend(&sizes, "/data",
                    RankAlong(TrafficAxis::kDp, plan.options().mesh, place));
  }
  return sizes;
}

}  // namespace

absl::StatusOr<RankPrediction> PredictRank(const PipelinePlan& plan,
                                           const RankPlace& place,
                                           const StateHomes& homes,
                                           MemoryAccess access) {
  DryRun run(plan, place, homes, access);
  TESSERA_ASSIGN_OR_RETURN(const auto steps, run.MakeSchedule());
  TESSERA_RETURN_IF_ERROR(run.Run(steps));
  RankPrediction rank = run.Result();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> snapshots,
                           run.Snapshots());
  rank.state.snapshot = SnapshotOf(place, plan.options().mesh, snapshots);
  return rank;
}

absl::StatusOr<std::vector<RankPrediction>> PredictRanks(
    const PipelinePlan& plan, std::span<const RankPlace> places,
    const StateHomes& homes) {
  struct Alike {
    RankPrediction rank;
    std::vector<int64_t> snapshots;
  };
  std::shared_ptr<const RunSchedule> steps;
  std::map<std::string, Alike> by_sizes;
  std::vector<RankPrediction> ranks;
  for (const RankPlace& place : places) {
    TESSERA_ASSIGN_OR_RETURN(const std::string sizes, SizesOf(plan, place));
    auto found = by_sizes.find(sizes);
    if (found == by_sizes.end()) {
      DryRun run(plan, place, homes, MemoryAccess::kZeros);
      if (steps == nullptr) {
        TESSERA_ASSIGN_OR_RETURN(steps, run.MakeSchedule());
      }
      TESSERA_RETURN_IF_ERROR(run.Run(steps));
      TESSERA_ASSIGN_OR_RETURN(std::vector<int64_t> snapshots, run.Snapshots());
      found = by_sizes.emplace(sizes, Alike{run.Result(), std::move(snapshots)})
                  .first;
    }
    RankPrediction& rank = ranks.emplace_back(found->second.rank);
    rank.place = place;
    rank.state.snapshot =
        SnapshotOf(place, plan.options().mesh, found->second.snapshots);
  }
  return ranks;
}

}  // namespace tessera::train
