#include "tools/train/model/sharded_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/fnv1a.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "offload/optimizer/parameter_range.h"
#include "tensor_parallel/layers/lora.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tools/train/model/adafactor.h"
#include "tools/train/model/hidden_matrices.h"
#include "tools/train/model/moment_tensors.h"
#include "tools/train/model/muon.h"
#include "tools/train/model/shampoo.h"
#include "tools/train/model/shampoo_blocks.h"
#include "zero3/state/state_device.h"

namespace tessera::train {

namespace {

// The bytes of `count` elements from `first` on.
std::span<std::byte> BytesOf(const TensorView& elements, int64_t first,
                             int64_t count) {
  const int64_t width = SizeInBytes(elements.dtype());
  return {elements.data() + first * width, static_cast<size_t>(count * width)};
}

}  // namespace

absl::Status FirstWeights::Draw(const tensor_parallel::Parameter& parameter,
                                int64_t begin, TensorView elements) const {
  std::string name = parameter.name();
  if (name.ends_with("norm.weight")) return Fill(elements, 1.0);
  if (name.ends_with("router.bias")) return Fill(elements, 0.0);
  if (name.ends_with(tensor_parallel::kLoraB)) return Fill(elements, 0.0);
  const double deviation =
      name.ends_with(tensor_parallel::kLoraA)
          ? 1 / std::sqrt(3 * static_cast<double>(parameter.shape()[1]))
          : options_.deviation;
  if (options_.tied_embeddings && name == "head.output.weight") {
    name = "embedding.weight";
  }
  const tensor_parallel::RandomKey key = {.seed = options_.seed,
                                          .stream = Fnv1a(name)};
  const int64_t total = elements.element_count();
  if (elements.dtype() == parameter.dtype()) {
    return parameter.DrawNormals(key, deviation, begin,
                                 BytesOf(elements, 0, total));
  }
  constexpr int64_t kElements = 1024;
  std::byte rounded[kElements * sizeof(double)];
  for (int64_t first = 0; first < total; first += kElements) {
    const int64_t count = std::min(kElements, total - first);
    const std::span<std::byte> drawn(
        rounded, static_cast<size_t>(count * SizeInBytes(parameter.dtype())));
    TESSERA_RETURN_IF_ERROR(
        parameter.DrawNormals(key, deviation, begin + first, drawn));
    TESSERA_RETURN_IF_ERROR(Convert(parameter.dtype(), drawn, elements.dtype(),
                                    BytesOf(elements, first, count)));
  }
  return absl::OkStatus();
}

namespace {

// The elements of which this rank is the primary holder.
std::vector<zero3::ElementRange> PrimaryElements(
    const tensor_parallel::Parameter& parameter) {
  std::vector<zero3::ElementRange> elements;
  int64_t begin = 0;
  for (const tensor_parallel::ParameterRows& rows : parameter.rows()) {
    const int64_t end = begin + rows.range.size() * parameter.columns().size();
    if (rows.primary) elements.push_back({begin, end});
    begin = end;
  }
  return elements;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedModel>> ShardedModel::Create(
    std::span<const ParameterWindow> windows,
    const zero3::ShardedStateOptions& options, const ModelGroups& groups,
    const FirstValues& first,
    std::span<const tensor_parallel::Parameter* const> uncounted,
    const MatrixUpdateOptions& matrices) {
  std::unique_ptr<ShardedModel> model(new ShardedModel(windows, options));
  const bool parts_experts = groups.experts.shard != nullptr;
  TESSERA_RETURN_IF_ERROR(model->Divide(parts_experts));
  if (options.UpdatesMatrices() && matrices.ops == nullptr) {
    return absl::InvalidArgumentError(
        "a model with Muon, Adafactor or Shampoo needs the operations of its "
        "device; give MatrixUpdateOptions");
  }
  if (options.optimizer == zero3::OptimizerKind::kAdafactor) {
    TESSERA_RETURN_IF_ERROR(model->AddMoments(matrices));
  }
  if (options.optimizer == zero3::OptimizerKind::kShampoo) {
    TESSERA_RETURN_IF_ERROR(model->AddStatistics(options, groups, matrices));
  }
  for (Part& part : model->parts_) {
    TESSERA_RETURN_IF_ERROR(model->CreateState(
        part, options, part.of_experts ? groups.experts : groups.dense,
        uncounted));
  }
  if (options.UpdatesMatrices()) {
    TESSERA_RETURN_IF_ERROR(model->CreateUpdates(options, groups, matrices));
  }
  TESSERA_RETURN_IF_ERROR(model->SetValues(first));
  TESSERA_RETURN_IF_ERROR(model->BindWhole());
  return model;
}

namespace {

// The options of Shampoo's statistics: frozen parameters that belong to ranks
// as a whole and are never gathered.
zero3::ShardedStateOptions StatisticsOptions(
    const zero3::ShardedStateOptions& options, int64_t ranks) {
  zero3::ShardedStateOptions own = options;
  own.optimizer = zero3::OptimizerKind::kAdamW;
  own.preconditioned.clear();
  // At stage 0 every rank has all of them.
  own.stage = options.stage == 0 && ranks > 1 ? 0 : 3;
  own.layout = zero3::LayoutKind::kRoundRobin;
  // One matrix is updated after the other.
  own.prefetch = std::min<int64_t>(options.prefetch, 1);
  own.persistence_threshold = 0;
  own.quantized_gradients = own.quantized_weights = false;
  own.hpz_partition_size = 0;
  own.parameter_tier = own.stage == 3 ? options.optimizer_tier : nullptr;
  own.gradient_tier = own.optimizer_tier = nullptr;
  own.frozen_codec = nullptr;
  own.key_prefix += "statistics/";
  return own;
}

}  // namespace

absl::Status ShardedModel::CreateState(
    Part& part, const zero3::ShardedStateOptions& options,
    const zero3::ShardedStateGroups& groups,
    std::span<const tensor_parallel::Parameter* const> uncounted) {
  zero3::ShardedStateOptions own = options;
  zero3::ShardedStateGroups ranks = groups;
  if (part.of_experts) own.key_prefix += "experts/";
  // The smaller expert group may not be divisible into such partitions.
  if (part.of_experts && own.hpz_partition_size > 0 &&
      ranks.shard->size() % own.hpz_partition_size != 0) {
    own.hpz_partition_size = 0;
  }
  for (const tensor_parallel::Parameter* parameter : part.parameters) {
    const bool counts = std::find(uncounted.begin(), uncounted.end(),
                                  parameter) == uncounted.end();
    own.counted_in_norm.push_back(counts ? PrimaryElements(*parameter)
                                         : std::vector<zero3::ElementRange>());
    own.is_encoded.push_back(!parameter->trainable() &&
                             IsHiddenMatrix(parameter->name()));
    own.preconditioned.push_back(parameter->trainable() &&
                                 IsHiddenMatrix(parameter->name()));
  }
  if (part.is_statistics) {
    own = StatisticsOptions(own, ranks.shard->size());
    ranks = {.shard = ranks.shard};
  }
  TESSERA_ASSIGN_OR_RETURN(const zero3::ModelParameters parameters,
                           Describe(part));
  TESSERA_ASSIGN_OR_RETURN(part.state,
                           zero3::ShardedState::Create(parameters, own, ranks));
  return absl::OkStatus();
}

// Assigns each parameter to a part.
absl::Status ShardedModel::Divide(bool parts_experts) {
  parts_.resize(parts_experts ? 2 : 1);
  parts_.back().of_experts = parts_experts;
  for (Part& part : parts_) {
    part.used.resize(windows_.size());
    part.reduced.resize(windows_.size());
  }
  for (size_t w = 0; w < windows_.size(); ++w) {
    for (tensor_parallel::Parameter* parameter : windows_[w]) {
      if (parameter->expert_parallel() && !parts_experts) {
        return absl::InvalidArgumentError(absl::StrCat(
            "parameter ", parameter->name(),
            " is divided among expert ranks; give the groups of experts"));
      }
      const size_t number = parameter->expert_parallel() ? 1 : 0;
      Part& part = parts_[number];
      const zero3::ParameterId next(
          static_cast<int64_t>(part.parameters.size()));
      const auto [found, is_new] = places_.insert({parameter, {number, next}});
      part.used[w].push_back(found->second.id);
      if (!is_new) continue;
      part.parameters.push_back(parameter);
      first_windows_[parameter] = w;
      if (parameter->trainable()) part.reduced[w].push_back(next);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<zero3::ModelParameters> ShardedModel::Describe(
    const Part& part) const {
  zero3::ModelParameters::Builder builder;
  for (const tensor_parallel::Parameter* parameter : part.parameters) {
    builder.Add({.name = parameter->name(),
                 .shape = parameter->local_shape(),
                 .dtype = parameter->dtype(),
                 .trainable = parameter->trainable(),
                 .orthogonalized = optimizer_ == zero3::OptimizerKind::kMuon &&
                                   parameter->trainable() &&
                                   IsHiddenMatrix(parameter->name()),
                 .group = static_cast<int64_t>(first_windows_.at(parameter))});
  }
  return builder.Build();
}

// Appends a parameter for the moments of each trained one.
absl::Status ShardedModel::AddMoments(const MatrixUpdateOptions& matrices) {
  const auto group =
      tensor_parallel::TensorGroup(*matrices.ops, matrices.tensor)
          .WithoutWeightMemory();
  for (Part& part : parts_) {
    const size_t weights = part.parameters.size();
    for (size_t i = 0; i < weights; ++i) {
      const tensor_parallel::Parameter& weight = *part.parameters[i];
      if (!weight.trainable()) continue;
      MomentTensor held = MomentsOf(
          {weight.name(), weight.shape(), weight.rows(), weight.columns()},
          MatricesOf(weight.name(), weight.shape()[0], matrices.model));
      TESSERA_ASSIGN_OR_RETURN(
          tensor_parallel::Parameter created,
          tensor_parallel::Parameter::Create(
              group,
              {.name = std::move(held.name),
               .shape = {held.size},
               .rows = std::move(held.rows),
               .trainable = false,
               .expert_parallel = weight.expert_parallel(),
               .dtype = tensor_parallel::GradientDType(weight.dtype())}));
      part.moments.push_back(
          std::make_unique<tensor_parallel::Parameter>(std::move(created)));
      tensor_parallel::Parameter* const moments = part.moments.back().get();
      places_[moments] = {
          static_cast<size_t>(&part - parts_.data()),
          zero3::ParameterId(static_cast<int64_t>(part.parameters.size()))};
      const size_t window = first_windows_.at(&weight);
      first_windows_[moments] = window;
      part.parameters.push_back(moments);
    }
  }
  return absl::OkStatus();
}

// Appends a part for the statistics of the matrices of each part.
absl::Status ShardedModel::AddStatistics(
    const zero3::ShardedStateOptions& options, const ModelGroups& groups,
    const MatrixUpdateOptions& matrices) {
  const size_t weights = parts_.size();
  for (size_t of = 0; of < weights; ++of) {
    const zero3::ShardedStateGroups& ranks =
        parts_[of].of_experts ? groups.experts : groups.dense;
    TESSERA_RETURN_IF_ERROR(AddStatistics(of, options.shampoo.block,
                                          stage_ == 0 ? 1 : ranks.shard->size(),
                                          matrices));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::AddStatistics(size_t of, int64_t block,
                                         int64_t shard_ranks,
                                         const MatrixUpdateOptions& matrices) {
  const auto group =
      tensor_parallel::TensorGroup(*matrices.ops, matrices.tensor)
          .WithoutWeightMemory();
  const int64_t tensor_rank =
      matrices.tensor == nullptr ? 0 : matrices.tensor->rank().value();
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<StateMatrix> own,
      ShampooMatrices(parts_[of].parameters, block, matrices));
  Part part;
  part.of_experts = parts_[of].of_experts;
  part.is_statistics = true;
  part.used.resize(windows_.size());
  part.reduced.resize(windows_.size());
  for (size_t i = 0; i < own.size(); ++i) {
    const tensor_parallel::Parameter& weight =
        *parts_[of].parameters[zero3::IndexOf(own[i].id)];
    const MatrixPart& whole = own[i].place.whole;
    const int64_t size =
        StatisticsElements(whole.rows.size(), whole.columns.size(), block);
    const bool is_owner =
        TensorOwnerOf(i, shard_ranks, matrices) == tensor_rank;
    TESSERA_ASSIGN_OR_RETURN(
        tensor_parallel::Parameter created,
        tensor_parallel::Parameter::Create(
            group, {.name = StatisticsName(weight.name(), whole.rows.begin),
                    .shape = {size},
                    .rows = {{{0, is_owner ? size : 0}}},
                    .trainable = false,
                    .expert_parallel = weight.expert_parallel(),
                    .dtype = own[i].dtype}));
    part.moments.push_back(
        std::make_unique<tensor_parallel::Parameter>(std::move(created)));
    part.parameters.push_back(part.moments.back().get());
    first_windows_[part.parameters.back()] = first_windows_.at(&weight);
  }
  parts_.push_back(std::move(part));
  preconditioned_.push_back(std::move(own));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<zero3::MatrixUpdates>> ShardedModel::UpdatesOf(
    size_t part, const zero3::ShardedStateOptions& options,
    collectives::Communicator* shard, const zero3::StateDevice& device,
    const MatrixUpdateOptions& matrices) {
  const Part& own = parts_[part];
  const zero3::StateLayout& layout = own.state->layout();
  if (options.optimizer == zero3::OptimizerKind::kMuon) {
    return Muon::Create(own.parameters, layout, shard, device, matrices);
  }
  if (options.optimizer == zero3::OptimizerKind::kShampoo) {
    return Shampoo::Create(std::move(preconditioned_[part]), layout, shard,
                           device, *parts_[preconditioned_.size() + part].state,
                           options, matrices);
  }
  std::vector<Adafactor::Trained> trained;
  auto moments =
      static_cast<int64_t>(own.parameters.size() - own.moments.size());
  for (size_t i = 0; i < own.parameters.size(); ++i) {
    if (!own.parameters[i]->trainable()) continue;
    trained.push_back({zero3::ParameterId(static_cast<int64_t>(i)),
                       zero3::ParameterId(moments++)});
  }
  return Adafactor::Create(own.parameters, trained, layout, shard, device,
                           options.adafactor, matrices);
}

absl::Status ShardedModel::CreateUpdates(
    const zero3::ShardedStateOptions& options, const ModelGroups& groups,
    const MatrixUpdateOptions& matrices) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    if (part.is_statistics) continue;
    zero3::StateDevice device(options.device, matrices.ops->queue());
    if (options.ops != nullptr) device.ops = options.ops;
    collectives::Communicator* const shard = stage_ == 0 ? nullptr
                                             : part.of_experts
                                                 ? groups.experts.shard
                                                 : groups.dense.shard;
    TESSERA_ASSIGN_OR_RETURN(part.updates,
                             UpdatesOf(i, options, shard, device, matrices));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::SetValues(const FirstValues& first) {
  for (Part& part : parts_) {
    TESSERA_RETURN_IF_ERROR(
        part.state->Fill([&](const zero3::ModelParameter& parameter,
                             int64_t begin, TensorView elements) {
          const auto id = static_cast<size_t>(parameter.id.value());
          if (IsMoments(parameter.name())) return Fill(elements, 0.0);
          return first(*part.parameters[id], begin, elements);
        }));
    for (tensor_parallel::Parameter* parameter : part.parameters) {
      parameter->Release();
      parameter->ReleaseGradient();
    }
  }
  return absl::OkStatus();
}

// Binds the values that are never gathered: all below stage 3, small parameters
// at stage 3.
absl::Status ShardedModel::BindWhole() {
  if (stage_ == 3) return absl::OkStatus();
  for (const auto& [parameter, place] : places_) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView value,
                             StateOf(place).Value(place.id));
    TESSERA_RETURN_IF_ERROR(
        parts_[place.part]
            .parameters[static_cast<size_t>(place.id.value())]
            ->Bind(value));
  }
  return absl::OkStatus();
}

int64_t ShardedModel::parameter_count() const {
  int64_t count = 0;
  for (const Part& part : parts_) {
    count += part.state->layout().model().elements();
    for (const auto& moments : part.moments) count -= moments->element_count();
  }
  return count;
}

std::vector<tensor_parallel::Parameter*> ShardedModel::ParametersOf(
    size_t window) const {
  std::vector<tensor_parallel::Parameter*> parameters = windows_[window];
  for (const Part& part : parts_) {
    for (const auto& moments : part.moments) {
      if (first_windows_.at(moments.get()) != window) continue;
      parameters.push_back(moments.get());
    }
  }
  return parameters;
}

zero3::ShardTraffic ShardedModel::total_traffic() const {
  zero3::ShardTraffic traffic;
  for (const Part& part : parts_) traffic.Add(part.state->total_traffic());
  return traffic;
}

absl::Status ShardedModel::SetLearningRate(double learning_rate) {
  for (Part& part : parts_) {
    TESSERA_RETURN_IF_ERROR(part.state->SetLearningRate(learning_rate));
  }
  return absl::OkStatus();
}

std::vector<zero3::ElementScale> ShardedModel::FactorsOf(
    size_t part, std::span<const RowScale> factors) const {
  std::vector<zero3::ElementScale> scales;
  for (const RowScale& factor : factors) {
    const Place& place = PlaceOf(factor.parameter);
    if (place.part != part) continue;
    const int64_t width = factor.parameter->columns().size();
    int64_t held = 0;  // Rows.
    for (const tensor_parallel::ParameterRows& rows :
         factor.parameter->rows()) {
      const int64_t first = held - rows.range.begin;
      const int64_t begin = std::max(factor.rows.begin, rows.range.begin);
      const int64_t end = std::min(factor.rows.end, rows.range.end);
      held += rows.range.size();
      if (begin >= end) continue;
      scales.push_back({place.id, (first + begin) * width,
                        (first + end) * width, factor.factor});
    }
  }
  std::stable_sort(scales.begin(), scales.end(),
                   [](const auto& a, const auto& b) { return a.id < b.id; });
  return scales;
}

absl::StatusOr<zero3::UpdateReport> ShardedModel::Step(
    std::span<const RowScale> factors) {
  offload::GradientStatistics all;
  for (Part& part : parts_) {
    TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics own,
                             part.state->Measure());
    all.Add(own);
  }
  zero3::UpdateReport report;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const std::vector<zero3::ElementScale> scales = FactorsOf(i, factors);
    TESSERA_ASSIGN_OR_RETURN(
        const zero3::UpdateReport own,
        parts_[i].state->StepMeasured(all, parts_[i].updates.get(), scales));
    const zero3::UpdateReport before = std::exchange(report, own);
    report.non_finite += before.non_finite;
    report.stepped_early += before.stepped_early;
    report.traffic.Add(before.traffic);
  }
  return report;
}

absl::Status ShardedModel::AwaitGathers() {
  for (const Part& part : parts_) {
    std::vector<zero3::ParameterId> all;
    for (const zero3::ModelParameter& parameter :
         part.state->layout().model().all()) {
      all.push_back(parameter.id);
    }
    TESSERA_RETURN_IF_ERROR(part.state->AwaitGather(all));
  }
  return absl::OkStatus();
}

void ShardedModel::BeginEvaluation() {
  for (Part& part : parts_) part.state->BeginEvaluation();
}

absl::Status ShardedModel::EndEvaluation() {
  for (Part& part : parts_) {
    TESSERA_RETURN_IF_ERROR(part.state->EndEvaluation());
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::AddToValue(
    const tensor_parallel::Parameter& parameter, ConstTensorView change,
    tensor_parallel::Ops& ops) {
  const Place& place = PlaceOf(&parameter);
  zero3::ShardedState& state = StateOf(place);
  const zero3::Extent extent = state.layout().ExtentOf(state.rank(), place.id);
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own,
                           state.weights().OpenOwn(place.id));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView part,
                           change.Narrow(0, extent.begin, extent.size()));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView values,
      TensorView::Create({own.data(), static_cast<size_t>(own.size_in_bytes())},
                         own.dtype(), {{own.size()}}, change.kind()));
  const absl::Status status = ops.Run(tensor_parallel::op::Add{part, values});
  TESSERA_RETURN_IF_ERROR(state.weights().CloseOwn(place.id, /*changed=*/true));
  return status;
}

absl::Status ShardedModel::StartGather(size_t window) {
  constexpr size_t kAnnounced = 2;
  const size_t next = ++gathers_;
  for (Part& part : parts_) {
    for (size_t i = next; i < next + kAnnounced && i < gather_order_.size();
         ++i) {
      TESSERA_RETURN_IF_ERROR(
          part.state->AnnounceGather(part.used[gather_order_[i]]));
    }
    TESSERA_RETURN_IF_ERROR(part.state->StartGather(part.used[window]));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::UseValues(size_t window) {
  for (Part& part : parts_) {
    TESSERA_RETURN_IF_ERROR(part.state->AwaitGather(part.used[window]));
  }
  if (stage_ < 3) return absl::OkStatus();
  for (tensor_parallel::Parameter* parameter : windows_[window]) {
    const Place& place = PlaceOf(parameter);
    TESSERA_ASSIGN_OR_RETURN(const TensorView value,
                             StateOf(place).Value(place.id));
    TESSERA_RETURN_IF_ERROR(parameter->Bind(value));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::Release(size_t window) {
  if (stage_ == 3) {
    for (tensor_parallel::Parameter* parameter : windows_[window]) {
      parameter->Release();
    }
  }
  for (Part& part : parts_) {
    TESSERA_RETURN_IF_ERROR(part.state->Release(part.used[window]));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::UseGradients(size_t window) {
  for (tensor_parallel::Parameter* parameter : windows_[window]) {
    if (!parameter->trainable()) continue;
    const Place& place = PlaceOf(parameter);
    TESSERA_ASSIGN_OR_RETURN(const TensorView gradient,
                             StateOf(place).Gradient(place.id));
    TESSERA_RETURN_IF_ERROR(parameter->BindGradient(gradient));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::Reduce(size_t window) {
  for (Part& part : parts_) {
    const std::vector<zero3::ParameterId>& ids = part.reduced[window];
    if (ids.empty()) continue;
    for (const zero3::ParameterId id : ids) {
      part.parameters[static_cast<size_t>(id.value())]->ReleaseGradient();
    }
    TESSERA_RETURN_IF_ERROR(part.state->ReduceGradients(ids));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> ShardedModel::OwnGradient(
    const tensor_parallel::Parameter& parameter) {
  const Place& place = PlaceOf(&parameter);
  return StateOf(place).OwnGradient(place.id);
}

}  // namespace tessera::train
