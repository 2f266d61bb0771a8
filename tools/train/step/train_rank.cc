#include "tools/train/step/train_rank.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "offload/tier/accounting.h"
#include "offload/tier/budgeted_memory.h"
#include "pipeline/schedule/schedule.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tools/text/samples.h"
#include "tools/train/model/sharded_model.h"
#include "tools/train/step/expert_balance.h"
#include "tools/train/step/step_tokens.h"
#include "tools/train/watch/live_place.h"
#include "topology/mesh.h"

namespace tessera::train {

namespace tp = tensor_parallel;

TrainRank::TrainRank(const RunOptions& options) : options_(options) {}
TrainRank::~TrainRank() = default;

absl::StatusOr<std::unique_ptr<TrainRank>> TrainRank::Create(
    collectives::Communicator& world, const RunOptions& options,
    const text::Samples& samples, tp::Ops& ops) {
  TESSERA_ASSIGN_OR_RETURN(RunSchedule schedule, RunSchedule::Create(options));
  return Create(world, options, std::move(schedule), samples, ops);
}

absl::StatusOr<std::unique_ptr<TrainRank>> TrainRank::Create(
    collectives::Communicator& world, const RunOptions& options,
    RunSchedule schedule, const text::Samples& samples, tp::Ops& ops) {
  std::unique_ptr<TrainRank> rank(new TrainRank(options));
  // State and activations share one account.
  std::shared_ptr<offload::Accounting>& device = rank->options_.state.device;
  if (device == nullptr) {
    const int64_t limit = options.device_budget;
    device = std::make_shared<offload::Accounting>(
        "device", limit == 0 ? offload::kUnlimited : limit);
  }
  rank->options_.state.queue = &ops.queue();
  rank->whole_.batch = options.batch;
  rank->whole_.schedule = std::move(schedule);
  TESSERA_RETURN_IF_ERROR(rank->JoinGroups(world));
  TESSERA_RETURN_IF_ERROR(rank->PlanData(samples));
  TESSERA_RETURN_IF_ERROR(rank->CreateLayers(ops));
  TESSERA_RETURN_IF_ERROR(rank->CreateModel());
  TESSERA_RETURN_IF_ERROR(rank->CreateStages());
  TESSERA_RETURN_IF_ERROR(rank->CreateExecutor(rank->whole_));
  return rank;
}

absl::Status TrainRank::JoinGroups(collectives::Communicator& world) {
  TESSERA_ASSIGN_OR_RETURN(const topology::Mesh mesh, options_.mesh.MakeMesh());
  TESSERA_ASSIGN_OR_RETURN(manager_,
                           collectives::GroupManager::Create(world, mesh));
  TESSERA_ASSIGN_OR_RETURN(groups_.tp, manager_->Group("tp"));
  TESSERA_ASSIGN_OR_RETURN(groups_.cp, manager_->Group("cp"));
  TESSERA_ASSIGN_OR_RETURN(groups_.pp, manager_->Group("pp"));
  TESSERA_ASSIGN_OR_RETURN(groups_.data, manager_->Group("cp,dp"));
  groups_.shard = groups_.data;
  if (options_.mesh.dp_replicate > 1) {
    TESSERA_ASSIGN_OR_RETURN(groups_.shard, manager_->Group("cp,dp_shard"));
    TESSERA_ASSIGN_OR_RETURN(groups_.replicas, manager_->Group("dp_replicate"));
  }
  TESSERA_ASSIGN_OR_RETURN(groups_.model, manager_->Group("tp,pp"));
  if (options_.mesh.ep > 1) {
    if (options_.model.mixture.experts == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh ", options_.mesh.ToFlag(),
                       " divides experts, and the model has none; leave ep "
                       "out"));
    }
    TESSERA_ASSIGN_OR_RETURN(groups_.ep, manager_->Group("ep"));
    TESSERA_ASSIGN_OR_RETURN(groups_.edp, manager_->Group("edp"));
    TESSERA_ASSIGN_OR_RETURN(groups_.expert_model, manager_->Group("tp,pp,ep"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      data_rank_, manager_->mesh().CoordinateOf(manager_->mesh_rank(), "dp"));
  return absl::OkStatus();
}

absl::Status TrainRank::PlanData(const text::Samples& samples) {
  if (samples.sequence() != options_.length) {
    return absl::InvalidArgumentError(
        absl::StrCat("the samples have ", samples.sequence(),
                     " tokens, but sequences have ", options_.length));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const text::BatchPartition batch,
      text::BatchPartition::Create(options_.batch, options_.mesh.dp,
                                   options_.micro_batch));
  tokens_ = std::make_unique<StepTokens>(samples, batch, data_rank_);
  return absl::OkStatus();
}

absl::Status TrainRank::CreateLayers(tp::Ops& ops) {
  const auto layout_of = options_.zigzag ? tp::SequenceLayout::Zigzag
                                         : tp::SequenceLayout::Contiguous;
  TESSERA_ASSIGN_OR_RETURN(const tp::SequenceLayout layout,
                           layout_of(options_.length, options_.mesh.cp));
  std::shared_ptr<MemoryResource> memory = options_.memory == nullptr
                                               ? ops.queue().device().memory()
                                               : options_.memory;
  if (options_.device_budget > 0) {
    memory = std::make_shared<offload::BudgetedMemory>(
        std::move(memory), options_.state.device,
        offload::Purpose::kActivations);
  }
  // The weights are in the memory of the state.
  const tp::TensorGroup tensor =
      tp::TensorGroup(ops, options_.mesh.tp > 1 ? groups_.tp : nullptr)
          .WithMemory(memory)
          .WithoutWeightMemory()
          .WithSequenceParallel(options_.sequence_parallel)
          .WithOverlapChunks(options_.overlap_chunks);
  const tp::ContextGroup context = {
      .group = tp::TensorGroup(ops, options_.mesh.cp > 1 ? groups_.cp : nullptr)
                   .WithMemory(memory),
      .layout = layout,
      .algorithm = options_.context_attention};
  std::optional<tp::TensorGroup> experts;
  if (groups_.ep != nullptr) {
    turns_ = std::make_unique<Turns>();
    experts.emplace(tp::TensorGroup(ops, groups_.ep)
                        .WithMemory(memory)
                        .WithMeanwhile(turns_.get()));
  }
  const pipeline::StageMap& map = schedule().layers().map;
  TESSERA_ASSIGN_OR_RETURN(
      layers_,
      LlamaLayers::Create(
          tensor, context, options_,
          map.StagesOf(static_cast<int32_t>(groups_.pp->rank().value())),
          experts, /*shares_table=*/!map.two_way()));
  return absl::OkStatus();
}

bool TrainRank::SharesTable() const {
  const pipeline::StageMap& map = schedule().layers().map;
  const auto last = static_cast<int32_t>(map.stages() - 1);
  return !map.two_way() && map.RankOf(0) == map.RankOf(last);
}

// True if this rank is the higher one of the two that hold a stage in a two-way
// map.
bool TrainRank::IsSecondCopy(int32_t stage) const {
  const pipeline::StageMap& map = schedule().layers().map;
  const auto rank = static_cast<int32_t>(groups_.pp->rank().value());
  return rank > std::min(map.RankOf(stage), map.RankFromBack(stage));
}

// Excludes the weights of second copies: checkpoints read only the first copy.
absl::Status TrainRank::LeaveToFirstCopy(const ParameterWindow& window) {
  for (tp::Parameter* parameter : window) {
    std::vector<tp::ParameterRows> rows = parameter->rows();
    for (tp::ParameterRows& range : rows) range.primary = false;
    TESSERA_RETURN_IF_ERROR(parameter->Describe(
        parameter->shape(), std::move(rows), parameter->replicated()));
  }
  return absl::OkStatus();
}

absl::Status TrainRank::CreateModel() {
  zero3::ShardedStateOptions state = options_.state;
  std::vector<const tp::Parameter*> uncounted;
  for (size_t i = 0; i < layers_->windows().size(); ++i) {
    if (!IsSecondCopy(layers_->numbers()[i])) continue;
    const ParameterWindow& window = layers_->windows()[i];
    uncounted.insert(uncounted.end(), window.begin(), window.end());
  }
  if (const tp::Parameter* copy = layers_->copied_table()) {
    uncounted.push_back(copy);
    // Both copies of a tied table are updated alike.
    std::vector<zero3::ParameterGroup>& groups = state.parameter_groups;
    const zero3::ParameterRates rates = RatesOf(groups, "embedding.weight");
    groups.insert(groups.begin(), {copy->name(), rates});
  }
  // The gradients of copies are summed shard by shard, which requires the same
  // shards on all ranks with a copy.
  if (options_.model.tied_embeddings && !SharesTable()) {
    state.layout = zero3::LayoutKind::kChunks;
  }
  state.adamw.learning_rate = options_.learning_rate.At(0);
  state.sgd.learning_rate = state.adamw.learning_rate;
  state.lion.learning_rate = state.adamw.learning_rate;
  state.key_prefix = KeyPrefix();
  if (!options_.base_codec.empty()) {
    TESSERA_ASSIGN_OR_RETURN(base_codec_,
                             offload::CreateCodec(options_.base_codec));
    state.frozen_codec = base_codec_.get();
  }
  const FirstWeights first({.seed = options_.seed,
                            .deviation = options_.model.initializer_range,
                            .tied_embeddings = options_.model.tied_embeddings});
  TESSERA_ASSIGN_OR_RETURN(
      model_,
      ShardedModel::Create(
          layers_->windows(), state,
          {.dense = {.shard = groups_.shard,
                     .replicas = groups_.replicas,
                     .model = groups_.model},
           .experts = {.shard = groups_.edp, .model = groups_.expert_model}},
          [&](const tp::Parameter& parameter, int64_t begin,
              TensorView elements) {
            return options_.first_weights == nullptr ||
                           tp::IsLoraFactor(parameter.name())
                       ? first.Draw(parameter, begin, elements)
                       : options_.first_weights(parameter, begin, elements);
          },
          uncounted,
          {.model = options_.model,
           .ops = &layers_->tensor().ops(),
           .tensor = options_.mesh.tp > 1 ? groups_.tp : nullptr,
           .experts = groups_.ep}));
  options_.first_weights = nullptr;  // Releases what it refers to.
  for (size_t i = 0; i < layers_->windows().size(); ++i) {
    if (!IsSecondCopy(layers_->numbers()[i])) continue;
    TESSERA_RETURN_IF_ERROR(LeaveToFirstCopy(model_->ParametersOf(i)));
  }
  return absl::OkStatus();
}

std::string TrainRank::KeyPrefix() const {
  return absl::StrCat("rank ", manager_->world().rank().value(), "/");
}

size_t TrainRank::WindowOf(int32_t stage) const {
  const std::span<const int32_t> numbers = layers_->numbers();
  return static_cast<size_t>(std::find(numbers.begin(), numbers.end(), stage) -
                             numbers.begin());
}

absl::Status TrainRank::CreateActivationStore(StepPlan& plan) {
  if (options_.activation_tier == nullptr) return absl::OkStatus();
  const auto rank = static_cast<size_t>(groups_.pp->rank().value());
  std::vector<ActivationPass> passes;
  for (const pipeline::Action& action : plan.schedule.layers().ranks[rank]) {
    if (!pipeline::Computes(action.kind)) continue;
    passes.push_back({{WindowOf(action.stage), action.microbatch},
                      action.kind == pipeline::ActionKind::kForward});
  }
  ActivationStore::Options options = {
      .tier = options_.activation_tier,
      .key_prefix = KeyPrefix(),
      .dtype = options_.dtype,
      .device =
          zero3::StateDevice(options_.state.device, *options_.state.queue)};
  if (options_.state.ops != nullptr) options.device.ops = options_.state.ops;
  for (const int32_t number : layers_->numbers()) {
    options.names.push_back(WindowName(options_, number));
  }
  TESSERA_ASSIGN_OR_RETURN(plan.activations,
                           ActivationStore::Create(passes, std::move(options)));
  return absl::OkStatus();
}

// InvalidArgument, with the option, if a step's work varies or cannot be
// captured.
absl::Status TrainRank::CheckGraphs() const {
  const auto refuse = [](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("graphs of a step's computations: ", why));
  };
  if (options_.batch_warmup_steps > 0) {
    return refuse("a batch that grows changes them; give no warm-up of it");
  }
  if (options_.dpo_beta.has_value()) {
    return refuse("the host computes the loss of DPO; give another loss");
  }
  if (layers_->tensor().queue().is_immediate()) {
    return refuse(absl::StrCat(
        "device ", layers_->tensor().queue().device().name(),
        " does work at once, so that there is nothing to capture; give a GPU "
        "or an emulated device"));
  }
  if (options_.mesh.world_size() > 1) {
    return refuse(absl::StrCat(
        "mesh ", options_.mesh.ToFlag(),
        " has collectives, which are not captured; give one rank"));
  }
  if (options_.model.mixture.experts > 0) {
    return refuse(
        "a mixture of experts moves as many rows to an expert as its router "
        "chose; give a model without experts");
  }
  if (options_.dropout > 0) {
    return refuse(absl::StrCat("the masks of dropout ", options_.dropout,
                               " depend on the step; give dropout 0"));
  }
  const zero3::ShardedStateOptions& state = options_.state;
  if (!options_.base_codec.empty()) {
    return refuse(
        "quantized base weights are gathered in every step, which is not "
        "captured; use --base_weights=full");
  }
  if (options_.activation_tier != nullptr || state.parameter_tier != nullptr ||
      state.gradient_tier != nullptr || state.optimizer_tier != nullptr) {
    return refuse(
        "the transfers of offloaded data differ from step to step; offload "
        "nothing");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TrainRank::UsesGraphs() const {
  if (options_.graphs == GraphChoice::kOff) return false;
  const absl::Status possible = CheckGraphs();
  if (options_.graphs == GraphChoice::kOn) {
    TESSERA_RETURN_IF_ERROR(possible);
    return true;
  }
  return possible.ok() && options_.model.ParameterCount() < kGraphParameters &&
         layers_->tensor().queue().native_handle() != nullptr;
}

absl::Status TrainRank::CreateStages() {
  passes_ = std::make_unique<LlamaPasses>(*tokens_, *model_, layers_->tensor());
  qk_clip_ = std::make_unique<QkClip>(*layers_);
  for (size_t i = 0; i < layers_->windows().size(); ++i) {
    stages_.push_back(MakeLlamaStage(*layers_, i, *passes_));
  }
  return absl::OkStatus();
}

// A collective of the pipeline group.
absl::Status TrainRank::CreateExecutor(StepPlan& plan) {
  TESSERA_RETURN_IF_ERROR(CreateActivationStore(plan));
  std::vector<pipeline::StageBinding> bindings;
  for (size_t i = 0; i < stages_.size(); ++i) {
    bindings.push_back({layers_->numbers()[i], stages_[i].get()});
  }
  pipeline::ExecutorOptions options;
  const auto last = static_cast<int32_t>(schedule().layers().map.stages() - 1);
  if (options_.model.tied_embeddings && !SharesTable() &&
      options_.lora.rank == 0) {
    options.tied.push_back({"embedding", {0, last}});
  }
  // All boundaries are equal, so ranks need not exchange them.
  options.boundaries.assign(static_cast<size_t>(last), BoundaryOf(*layers_));
  options.queue = &layers_->tensor().queue();
  options.memory = options_.memory;
  if (turns_ != nullptr) options.interleaver = &turns_->interleaver;
  TESSERA_ASSIGN_OR_RETURN(options.captures, UsesGraphs());
  TESSERA_ASSIGN_OR_RETURN(
      plan.executor,
      pipeline::Executor::Create(*groups_.pp, plan.schedule.lowered(), bindings,
                                 std::move(options)));
  for (const int32_t stage :
       plan.executor->UnshardOrder(pipeline::Passes::kBoth)) {
    plan.step_gathers.push_back(WindowOf(stage));
  }
  for (const int32_t stage :
       plan.executor->UnshardOrder(pipeline::Passes::kForward)) {
    plan.evaluation_gathers.push_back(WindowOf(stage));
  }
  return absl::OkStatus();
}

// While the batch grows, there is one plan besides the one for the whole batch.
// It needs less memory.
absl::Status TrainRank::ChoosePlan() {
  const int64_t batch = options_.batches().At(steps());
  if (batch == plan_->batch) return absl::OkStatus();
  if (smaller_.activations != nullptr) {
    earlier_traffic_.Add(smaller_.activations->total_traffic());
  }
  plan_ = &whole_;
  smaller_ = {};
  if (batch == whole_.batch) return absl::OkStatus();
  RunOptions options = options_;
  options.batch = batch;
  smaller_.batch = batch;
  TESSERA_ASSIGN_OR_RETURN(
      smaller_.schedule, RunSchedule::Create(options),
      Annotate(_, absl::StrCat("the schedule of a batch of ", batch)));
  TESSERA_RETURN_IF_ERROR(CreateExecutor(smaller_));
  plan_ = &smaller_;
  return absl::OkStatus();
}

namespace {

// Converts a mean over tokens into a mean over targets. Returns 0 if there are
// no targets: then there are neither losses nor gradients.
double TargetFactor(int64_t tokens, int64_t targets) {
  return targets == 0
             ? 0
             : static_cast<double>(tokens) / static_cast<double>(targets);
}

}  // namespace

namespace {

absl::StatusOr<zero3::UpdateReport> Update(
    ShardedModel& model, std::span<const ShardedModel::RowScale> factors) {
  const ActionScope place(RankAction::kOptimizer);
  return model.Step(factors);
}

}  // namespace

absl::Status TrainRank::BeginStep() {
  TESSERA_RETURN_IF_ERROR(ChoosePlan());
  TESSERA_RETURN_IF_ERROR(qk_clip_->Begin());
  tokens_->Begin(text::SampleUse::kTraining, FirstSampleOf(steps()),
                 plan_->batch);
  TESSERA_ASSIGN_OR_RETURN(const int64_t targets, tokens_->CountTargets());
  model_->BeginStep(plan_->step_gathers);
  passes_->BeginStep();
  passes_->store = plan_->activations.get();
  passes_->loss_factor =
      model_->loss_scale() / static_cast<double>(options_.mesh.dp);
  passes_->target_factor =
      options_.dpo_beta ? 1 : TargetFactor(tokens_->CountTokens(), targets);
  return plan_->activations == nullptr ? absl::OkStatus()
                                       : plan_->activations->BeginStep();
}

absl::StatusOr<StepRecord> TrainRank::Step() {
  if (options_.dpo_beta && references().empty() &&
      layers_->tensor().ops().computes()) {
    return absl::FailedPreconditionError(
        "a step of DPO without references; call ComputeReferences first");
  }
  times_.begin = collectives::MonotonicNanos();
  StepRecord record;
  record.step = steps();
  record.learning_rate = options_.learning_rate.At(steps());
  TESSERA_RETURN_IF_ERROR(model_->SetLearningRate(record.learning_rate));
  TESSERA_RETURN_IF_ERROR(BeginStep());
  pipeline::Executor& executor = *plan_->executor;
  TESSERA_RETURN_IF_ERROR(executor.Start());
  if (plan_->activations != nullptr) {
    TESSERA_RETURN_IF_ERROR(plan_->activations->EndStep().status());
  }
  boundary_bytes_ = executor.timeline().peak_bytes;
  TESSERA_RETURN_IF_ERROR(layers_->FinishFp8Step(*groups_.data));
  times_.pipeline = PipelineBegin();
  times_.update_begin = collectives::MonotonicNanos();
  ExpertBalance experts(*layers_, *model_, *passes_);
  TESSERA_RETURN_IF_ERROR(experts.Count(*groups_.data, *groups_.pp));
  record.expert_imbalance = experts.Imbalance();
  TESSERA_RETURN_IF_ERROR(experts.MoveBiases(1));
  TESSERA_RETURN_IF_ERROR(qk_clip_->Finish(*groups_.data, *groups_.model));
  record.max_attention_score = qk_clip_->Largest();
  TESSERA_ASSIGN_OR_RETURN(const zero3::UpdateReport report,
                           Update(*model_, qk_clip_->Factors()));
  if (report.skipped) TESSERA_RETURN_IF_ERROR(experts.MoveBiases(-1));
  times_.update_end = collectives::MonotonicNanos();
  // The optimizer has also waited for the losses.
  TESSERA_ASSIGN_OR_RETURN(const pipeline::StepResult result,
                           executor.Finish());
  finding_ = {.loss = result.loss, .non_finite = report.non_finite};
  TESSERA_ASSIGN_OR_RETURN(record.loss, MeanOverData(result.loss));
  record.loss *= passes_->target_factor;
  TESSERA_RETURN_IF_ERROR(AddRewards(record));
  record.gradient_norm = report.gradient_norm;
  record.loss_scale = report.loss_scale;
  record.skipped = report.skipped;
  record.tokens = plan_->batch * options_.length;
  record.rollbacks = progress_.rollbacks;
  progress_.AddStep(record.loss, options_.spike_window);
  times_.end = collectives::MonotonicNanos();
  times_.data_ns = tokens_->read_ns();
  return record;
}

absl::StatusOr<double> TrainRank::Evaluate(int64_t batches,
                                           text::SampleUse use) {
  const ActionScope place(RankAction::kEvaluate);
  double sum = 0;
  int64_t tokens = 0, targets = 0;
  model_->BeginEvaluation();
  for (int64_t batch = 0; batch < batches; ++batch) {
    TESSERA_ASSIGN_OR_RETURN(
        const double loss, ForwardBatch(use, batch * whole_.batch),
        Annotate(_, use == text::SampleUse::kTest ? "test" : "validation"));
    TESSERA_ASSIGN_OR_RETURN(const int64_t batch_targets,
                             tokens_->CountTargets());
    tokens += tokens_->CountTokens();
    targets += batch_targets;
    sum += loss;
  }
  TESSERA_RETURN_IF_ERROR(layers_->DiscardFp8Step());
  TESSERA_RETURN_IF_ERROR(model_->EndEvaluation());
  const double factor = options_.dpo_beta ? 1 : TargetFactor(tokens, targets);
  return sum / static_cast<double>(batches) * factor;
}

absl::StatusOr<double> TrainRank::ForwardBatch(text::SampleUse use,
                                               int64_t first) {
  tokens_->Begin(use, first, whole_.batch);
  model_->BeginStep(whole_.evaluation_gathers);
  TESSERA_ASSIGN_OR_RETURN(const pipeline::StepResult result,
                           whole_.executor->RunForward());
  return MeanOverData(result.loss);
}

absl::Status TrainRank::ComputeReferences() {
  const int64_t count = tokens_->CountSamples();
  std::vector<double> all(static_cast<size_t>(count));
  // The other ranks of these groups have the same numbers.
  const bool reports = groups_.tp->rank() == collectives::Rank(0) &&
                       groups_.cp->rank() == collectives::Rank(0);
  tokens_->SetReferences({});
  model_->BeginEvaluation();
  for (int64_t first = 0; first < count; first += whole_.batch) {
    passes_->log_probabilities.clear();
    TESSERA_RETURN_IF_ERROR(
        ForwardBatch(text::SampleUse::kInOrder, first).status(),
        Annotate(_, "the log-probabilities of the reference"));
    for (const auto& [microbatch, own] : passes_->log_probabilities) {
      const int64_t at = tokens_->FirstSequence(microbatch);
      // The last batch begins again with the first samples.
      for (int64_t i = at;
           reports && i < count && i - at < options_.micro_batch; ++i) {
        all[static_cast<size_t>(i)] = own[static_cast<size_t>(i - at)];
      }
    }
  }
  TESSERA_RETURN_IF_ERROR(layers_->DiscardFp8Step());
  TESSERA_RETURN_IF_ERROR(model_->EndEvaluation());
  TESSERA_RETURN_IF_ERROR(world().host().AllReduce(
      collectives::Buffer(std::span(all)), collectives::Reduction::Sum()));
  return SetReferences(std::move(all));
}

absl::Status TrainRank::SetReferences(std::vector<double> references) {
  const auto given = static_cast<int64_t>(references.size());
  if (given != tokens_->CountSamples()) {
    return absl::InvalidArgumentError(absl::StrCat(
        given, " log-probabilities of the reference; the data has ",
        tokens_->CountSamples(), " sequences"));
  }
  tokens_->SetReferences(std::move(references));
  return absl::OkStatus();
}

const std::vector<double>& TrainRank::references() const {
  return tokens_->all_references();
}

// Sums the rewards over the heads of all data ranks.
absl::Status TrainRank::AddRewards(StepRecord& record) {
  if (!options_.dpo_beta.has_value()) return absl::OkStatus();
  double sums[3] = {};
  if (groups_.tp->rank() == collectives::Rank(0) &&
      groups_.cp->rank() == collectives::Rank(0)) {
    const RewardSums& own = passes_->rewards;
    sums[0] = own.chosen, sums[1] = own.rejected, sums[2] = own.won;
  }
  TESSERA_RETURN_IF_ERROR(world().host().AllReduce(
      collectives::Buffer(std::span(sums)), collectives::Reduction::Sum()));
  const auto pairs = static_cast<double>(plan_->batch) / 2;
  record.reward_chosen = sums[0] / pairs;
  record.reward_rejected = sums[1] / pairs;
  record.reward_accuracy = sums[2] / pairs;
  return absl::OkStatus();
}

// The timeline begins with the first pass of a stage.
int64_t TrainRank::PipelineBegin() const {
  return passes_->first_pass_ns -
         static_cast<int64_t>(executor().timeline().first() * 1e9);
}

int64_t TrainRank::activation_bytes() const {
  return boundary_bytes_ + passes_->pool.taken_bytes() +
         passes_->pool.free_bytes();
}

zero3::ShardTraffic TrainRank::offload_traffic() const {
  zero3::ShardTraffic traffic = model_->total_traffic();
  traffic.Add(earlier_traffic_);
  for (const StepPlan* plan : {&whole_, &smaller_}) {
    if (plan->activations == nullptr) continue;
    traffic.Add(plan->activations->total_traffic());
  }
  return traffic;
}

// Sums over context ranks, which have parts of one loss, and averages over data
// ranks.
absl::StatusOr<double> TrainRank::MeanOverData(double loss) {
  mean_loss_ = loss;
  const collectives::Buffer buffer{std::span(&mean_loss_, 1)};
  TESSERA_RETURN_IF_ERROR(groups_.data->host().RunPrepared(
      sum_loss_,
      collectives::AllReduceOf(buffer, buffer, collectives::Reduction::Sum())));
  return mean_loss_ / static_cast<double>(options_.mesh.dp);
}

}  // namespace tessera::train
