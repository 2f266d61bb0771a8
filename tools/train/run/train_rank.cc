#include "tools/train/run/train_rank.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "pipeline/generate/generate.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/partition/partition.h"
#include "tools/text/batches/batch_partition.h"
#include "tools/train/model/first_weights.h"
#include "topology/mesh.h"

namespace tessera::train {

namespace tp = tensor_parallel;

class TrainRank::LateAccess final : public WeightAccess {
 public:
  void Set(WeightAccess* access) { access_ = access; }

  absl::Status Use(std::span<tp::Parameter* const> parameters) override {
    return access_->Use(parameters);
  }
  absl::Status Done(std::span<tp::Parameter* const> parameters) override {
    return access_->Done(parameters);
  }

 private:
  WeightAccess* access_ = nullptr;
};

TrainRank::TrainRank(const RunOptions& options) : options_(options) {}

TrainRank::~TrainRank() = default;

absl::StatusOr<std::unique_ptr<TrainRank>> TrainRank::Create(
    collectives::Communicator& world, const RunOptions& options,
    const text::Samples& samples, tp::Ops& ops) {
  std::unique_ptr<TrainRank> rank(new TrainRank(options));
  TESSERA_RETURN_IF_ERROR(rank->JoinGroups(world));
  TESSERA_RETURN_IF_ERROR(rank->PlanData(samples));
  TESSERA_RETURN_IF_ERROR(rank->CreateStages(ops));
  TESSERA_RETURN_IF_ERROR(rank->CreateModel());
  TESSERA_RETURN_IF_ERROR(rank->CreateExecutor());
  return rank;
}

absl::Status TrainRank::JoinGroups(collectives::Communicator& world) {
  const MeshSizes& sizes = options_.mesh;
  const topology::Axis axes[] = {{"tp", topology::AxisSize(sizes.tp)},
                                 {"cp", topology::AxisSize(sizes.cp)},
                                 {"dp", topology::AxisSize(sizes.dp)},
                                 {"pp", topology::AxisSize(sizes.pp)}};
  TESSERA_ASSIGN_OR_RETURN(const topology::Mesh mesh,
                           topology::Mesh::Create(axes));
  TESSERA_ASSIGN_OR_RETURN(manager_,
                           collectives::GroupManager::Create(world, mesh));
  TESSERA_ASSIGN_OR_RETURN(groups_.tp, manager_->Group("tp"));
  TESSERA_ASSIGN_OR_RETURN(groups_.cp, manager_->Group("cp"));
  TESSERA_ASSIGN_OR_RETURN(groups_.pp, manager_->Group("pp"));
  TESSERA_ASSIGN_OR_RETURN(groups_.data, manager_->Group("cp,dp"));
  TESSERA_ASSIGN_OR_RETURN(groups_.model, manager_->Group("tp,pp"));
  TESSERA_ASSIGN_OR_RETURN(
      data_rank_, manager_->mesh().CoordinateOf(manager_->mesh_rank(), "dp"));
  return absl::OkStatus();
}

absl::Status TrainRank::PlanData(const text::Samples& samples) {
  if (samples.sequence() != options_.length) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples of ", samples.sequence(),
                     " tokens for sequences of ", options_.length));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const text::BatchPartition batch,
      text::BatchPartition::Create(options_.batch, options_.mesh.dp,
                                   options_.micro_batch));
  tokens_ = std::make_unique<StepTokens>(samples, batch, data_rank_);
  TESSERA_ASSIGN_OR_RETURN(
      schedule_, pipeline::Generate(options_.schedule,
                                    {.ranks = options_.mesh.pp,
                                     .chunks = options_.chunks,
                                     .microbatches = batch.micro_batches()}));
  return absl::OkStatus();
}

absl::Status TrainRank::CreateStages(tp::Ops& ops) {
  const auto layout_of = options_.zigzag ? tp::SequenceLayout::Zigzag
                                         : tp::SequenceLayout::Contiguous;
  TESSERA_ASSIGN_OR_RETURN(const tp::SequenceLayout layout,
                           layout_of(options_.length, options_.mesh.cp));
  const auto memory =
      options_.memory == nullptr ? HostMemory() : options_.memory;
  // The state holds the weights.
  const tp::TensorGroup tensor =
      tp::TensorGroup(ops, options_.mesh.tp > 1 ? groups_.tp : nullptr)
          .WithMemory(memory)
          .WithoutWeightMemory();
  const tp::ContextGroup context = {
      tp::TensorGroup(ops, options_.mesh.cp > 1 ? groups_.cp : nullptr)
          .WithMemory(memory),
      layout};
  TESSERA_ASSIGN_OR_RETURN(
      const tp::Partition layers,
      tp::Partition::Balanced(options_.model.layers, schedule_.map.stages()));
  access_ = std::make_unique<LateAccess>();
  stage_numbers_ =
      schedule_.map.StagesOf(static_cast<int32_t>(groups_.pp->rank().value()));
  for (const int32_t stage : stage_numbers_) {
    const tp::IndexRange range = layers.RangeOf(stage);
    TESSERA_ASSIGN_OR_RETURN(
        stages_.emplace_back(),
        LlamaStage::Create(tensor, context,
                           {.model = options_.model,
                            .first_layer = range.begin,
                            .layers = range.size(),
                            .is_first = stage == 0,
                            .is_last = stage + 1 == schedule_.map.stages(),
                            .sequences = options_.micro_batch,
                            .length = options_.length,
                            .dtype = options_.dtype,
                            .sequence_parallel = options_.sequence_parallel,
                            .recompute = options_.recompute},
                           *tokens_, *access_));
  }
  return absl::OkStatus();
}

// Two-way maps give every stage to two ranks.
bool TrainRank::IsSecondCopy(int32_t stage) const {
  const pipeline::StageMap& map = schedule_.map;
  const auto rank = static_cast<int32_t>(groups_.pp->rank().value());
  return rank > std::min(map.RankOf(stage), map.RankFromBack(stage));
}

// Where another rank has the same stage, that one's weights are what norms
// count and checkpoints read.
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
  std::vector<ParameterWindow> windows;
  std::vector<const tp::Parameter*> copied_tables;
  for (size_t i = 0; i < stages_.size(); ++i) {
    for (const ParameterWindow& window : stages_[i]->windows()) {
      if (IsSecondCopy(stage_numbers_[i])) {
        TESSERA_RETURN_IF_ERROR(LeaveToFirstCopy(window));
      }
      windows.push_back(window);
    }
    if (const tp::Parameter* copy = stages_[i]->copied_table()) {
      copied_tables.push_back(copy);
    }
  }
  zero3::ShardedStateOptions state = options_.state;
  state.adamw.learning_rate = options_.learning_rate.At(0);
  state.key_prefix =
      absl::StrCat("rank ", manager_->world().rank().value(), "/");
  const FirstWeights first({.seed = options_.seed,
                            .deviation = options_.model.initializer_range,
                            .tied_embeddings = options_.model.tied_embeddings});
  TESSERA_ASSIGN_OR_RETURN(
      model_, ShardedModel::Create(
                  std::move(windows), state,
                  {.shard = groups_.data, .model = groups_.model},
                  [&first](const tp::Parameter& parameter, int64_t begin,
                           TensorView elements) {
                    return first.Draw(parameter, begin, elements);
                  },
                  copied_tables));
  access_->Set(model_.get());
  return absl::OkStatus();
}

absl::Status TrainRank::CreateExecutor() {
  pipeline::ExecutorOptions options;
  const auto last = static_cast<int32_t>(schedule_.map.stages() - 1);
  if (options_.model.tied_embeddings && last > 0) {
    options.tied.push_back({"embedding", {0, last}});
  }
  // All stages hand on the same: nobody needs to ask.
  TESSERA_ASSIGN_OR_RETURN(const pipeline::TensorSpec boundary,
                           stages_.front()->OutputSpec(nullptr));
  options.boundaries.assign(static_cast<size_t>(last), boundary);
  std::vector<pipeline::StageBinding> bindings;
  for (size_t i = 0; i < stages_.size(); ++i) {
    bindings.push_back({stage_numbers_[i], stages_[i].get()});
  }
  TESSERA_ASSIGN_OR_RETURN(
      executor_, pipeline::Executor::Create(*groups_.pp, schedule_, bindings,
                                            std::move(options)));
  return absl::OkStatus();
}

absl::Status TrainRank::BeginStep() {
  tokens_->BeginStep(step_);
  TESSERA_RETURN_IF_ERROR(model_->BeginStep());
  for (auto& stage : stages_) {
    stage->BeginStep();
    stage->SetLossFactor(model_->state().loss_scale() /
                         static_cast<double>(options_.mesh.dp));
  }
  return absl::OkStatus();
}

absl::Status TrainRank::FinishGradients() {
  for (auto& stage : stages_) {
    TESSERA_RETURN_IF_ERROR(stage->FinishGradients());
  }
  return model_->ReduceGradients();
}

absl::StatusOr<StepRecord> TrainRank::Step() {
  times_.begin = collectives::MonotonicNanos();
  StepRecord record;
  record.step = step_;
  record.learning_rate = options_.learning_rate.At(step_);
  TESSERA_RETURN_IF_ERROR(
      model_->state().SetLearningRate(record.learning_rate));
  TESSERA_RETURN_IF_ERROR(BeginStep());
  TESSERA_ASSIGN_OR_RETURN(const pipeline::StepResult result, executor_->Run());
  times_.pipeline = PipelineBegin();
  TESSERA_RETURN_IF_ERROR(FinishGradients());
  times_.update_begin = collectives::MonotonicNanos();
  TESSERA_ASSIGN_OR_RETURN(const zero3::StepReport report, model_->Step());
  times_.update_end = collectives::MonotonicNanos();
  TESSERA_ASSIGN_OR_RETURN(record.loss, MeanOverData(result.loss));
  record.gradient_norm = report.gradient_norm;
  record.loss_scale = report.loss_scale;
  record.skipped = report.skipped;
  ++step_;
  times_.end = collectives::MonotonicNanos();
  return record;
}

// The first computation is the first pass of a stage.
int64_t TrainRank::PipelineBegin() const {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const auto& stage : stages_) {
    first = std::min(first, stage->first_pass_ns());
  }
  return first - static_cast<int64_t>(executor_->timeline().first() * 1e9);
}

int64_t TrainRank::activation_bytes() const {
  int64_t bytes = executor_->timeline().peak_bytes;
  for (const auto& stage : stages_) {
    bytes += stage->pool().taken_bytes() + stage->pool().free_bytes();
  }
  return bytes;
}

// Context ranks have parts of each loss, data ranks losses of their own.
absl::StatusOr<double> TrainRank::MeanOverData(double loss) {
  TESSERA_RETURN_IF_ERROR(groups_.data->AllReduce(
      collectives::Buffer(std::span(&loss, 1)), collectives::Reduction::Sum()));
  return loss / static_cast<double>(options_.mesh.dp);
}

}  // namespace tessera::train
