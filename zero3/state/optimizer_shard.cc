#include "zero3/state/optimizer_shard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {

namespace {

// An optimizer of parameters with these rates, on the pool; creates the pool if
// it is null.
template <typename Options>
absl::StatusOr<std::unique_ptr<offload::ElementwiseOptimizer<Options>>>
CreateWith(const ParameterRates& rates, std::shared_ptr<ThreadPool>& pool,
           Options options) {
  options.learning_rate *= rates.learning_rate;
  options.weight_decay = rates.weight_decay.value_or(options.weight_decay);
  TESSERA_RETURN_IF_ERROR(CheckOptimizer(options));
  pool =
      ThreadPool::OrNew(pool == nullptr ? options.pool : pool, options.threads);
  options.pool = pool;
  return offload::ElementwiseOptimizer<Options>::Create(options);
}

}  // namespace

absl::Status OptimizerShard::CreateGroups() {
  for (const ModelParameter& parameter : context_.model().all()) {
    const ParameterRates rates =
        RatesOf(options_.parameter_groups, parameter.name());
    const auto found =
        std::find_if(groups_.begin(), groups_.end(),
                     [&](const Group& group) { return group.rates == rates; });
    group_of_[parameter.id] = static_cast<size_t>(found - groups_.begin());
    if (found == groups_.end()) TESSERA_RETURN_IF_ERROR(CreateGroup(rates));
  }
  return CreateDirections();
}

// Plain SGD uses the update of a matrix as the gradient.
absl::Status OptimizerShard::CreateGroup(const ParameterRates& rates) {
  Group& group = groups_.emplace_back();
  group.rates = rates;
  if (options_.optimizer == OptimizerKind::kSgd) {
    TESSERA_ASSIGN_OR_RETURN(group.optimizer,
                             CreateWith(rates, pool_, options_.sgd));
    return absl::OkStatus();
  }
  if (options_.optimizer == OptimizerKind::kLion) {
    TESSERA_ASSIGN_OR_RETURN(group.optimizer,
                             CreateWith(rates, pool_, options_.lion));
    return absl::OkStatus();
  }
  const offload::AdamWOptions& adamw = options_.adamw;
  if (options_.optimizer != OptimizerKind::kAdafactor) {
    TESSERA_ASSIGN_OR_RETURN(group.optimizer, CreateWith(rates, pool_, adamw));
  }
  if (!options_.UpdatesMatrices()) return absl::OkStatus();
  const offload::SgdOptions matrices = {
      .learning_rate = adamw.learning_rate,
      .weight_decay = adamw.weight_decay,
      .decay = offload::WeightDecay::kDecoupled};
  const std::string_view name =
      options_.optimizer == OptimizerKind::kMuon        ? "Muon"
      : options_.optimizer == OptimizerKind::kAdafactor ? "Adafactor"
                                                        : "Shampoo";
  TESSERA_ASSIGN_OR_RETURN(group.matrices, CreateWith(rates, pool_, matrices),
                           Annotate(_, name));
  return absl::OkStatus();
}

// A step with learning rate 1 on zero weights results in the negative
// direction. So Muon uses the kernels of SGD, and Shampoo those of AdamW, on
// every device and for every type of moments and weights.
absl::Status OptimizerShard::CreateDirections() {
  offload::AdamWOptions adamw = options_.adamw;
  offload::SgdOptions sgd = {.learning_rate = 1,
                             .rounding = adamw.rounding,
                             .seed = adamw.seed,
                             .threads = adamw.threads};
  if (options_.optimizer == OptimizerKind::kMuon) {
    sgd.momentum = options_.muon_momentum;
    sgd.nesterov = true;
    TESSERA_ASSIGN_OR_RETURN(matrix_sgd_, CreateWith({}, pool_, sgd),
                             Annotate(_, "Muon"));
  }
  if (options_.optimizer == OptimizerKind::kShampoo) {
    adamw.learning_rate = 1;
    adamw.weight_decay = 0;
    TESSERA_ASSIGN_OR_RETURN(matrix_adamw_, CreateWith({}, pool_, adamw));
    TESSERA_ASSIGN_OR_RETURN(matrix_sgd_, CreateWith({}, pool_, sgd));
  }
  return absl::OkStatus();
}

OptimizerShard::OptimizerShard(const StateContext& context,
                               const ShardedStateOptions& options,
                               ModelWeights& weights,
                               GradientReducer& gradients, HostCopies* host)
    : context_(context),
      options_(options),
      group_of_(context.model().count()),
      weights_(weights),
      gradients_(gradients),
      host_(host),
      device_(host == nullptr ? context.device : HostOf(context.device)),
      early_(context.model().count()) {
  for (const Extent& extent : context.layout.ExtentsOf(context.rank)) {
    if (!context.model()[extent.parameter].trainable() || extent.slot == 0) {
      continue;
    }
    owned_.push_back(extent.parameter);
  }
  const bool is_adafactor = options.optimizer == OptimizerKind::kAdafactor;
  const auto matrices =
      std::stable_partition(owned_.begin(), owned_.end(), [&](ParameterId id) {
        return !is_adafactor && !context.model()[id].spec.orthogonalized &&
               !options.IsPreconditioned(id);
      });
  elementwise_ = static_cast<size_t>(matrices - owned_.begin());
}

absl::StatusOr<std::unique_ptr<OptimizerShard>> OptimizerShard::Create(
    const StateContext& context, const ShardedStateOptions& options,
    ModelWeights& weights, GradientReducer& gradients, HostCopies* host,
    std::shared_ptr<ShardPrefetch> prefetch) {
  std::unique_ptr<OptimizerShard> shard(
      new OptimizerShard(context, options, weights, gradients, host));
  TESSERA_RETURN_IF_ERROR(shard->CreateGroups());
  for (const StatePart part : kOptimizerParts) {
    TESSERA_RETURN_IF_ERROR(shard->CreateStore(part, prefetch));
  }
  return shard;
}

absl::Status OptimizerShard::CreateStore(
    StatePart part, const std::shared_ptr<ShardPrefetch>& prefetch) {
  std::vector<ShardBlock> blocks;
  for (const ModelParameter& parameter : context_.model().all()) {
    ShardBlock& block = blocks.emplace_back();
    if (const auto format = FormatOf(part, parameter.id)) {
      block = {absl::StrCat(options_.key_prefix, StatePartName(part), "/",
                            parameter.id.value()),
               format->BytesOf(context_.OwnExtent(parameter.id).slot),
               format->dtype, options_.optimizer_tier};
    }
  }
  TESSERA_ASSIGN_OR_RETURN(
      stores_[static_cast<size_t>(part) - 1],
      ShardStore::Create(std::move(blocks),
                         {.purpose = offload::Purpose::kOptimizer,
                          .device = device_,
                          .prefetch = prefetch,
                          .writes_late = host_ != nullptr}));
  return absl::OkStatus();
}

absl::Status OptimizerShard::SetLearningRate(double learning_rate) {
  for (const Group& group : groups_) {
    const double rate = learning_rate * group.rates.learning_rate;
    if (group.matrices != nullptr) {
      TESSERA_RETURN_IF_ERROR(group.matrices->SetLearningRate(rate));
    }
    TESSERA_RETURN_IF_ERROR(std::visit(
        [&](const auto& optimizer) {
          return optimizer == nullptr ? absl::OkStatus()
                                      : optimizer->SetLearningRate(rate);
        },
        group.optimizer));
  }
  return absl::OkStatus();
}

int64_t OptimizerShard::BytesOfSlot(const ModelParameter& parameter,
                                    int64_t slot,
                                    const ShardedStateOptions& options) {
  int64_t bytes = 0;
  for (const StatePart part : kOptimizerParts) {
    const auto format = StateFormatOf(parameter, options.moment_kinds(), part);
    if (format) bytes += format->BytesOf(slot);
  }
  return bytes;
}

absl::StatusOr<std::span<std::byte>> OptimizerShard::Open(StatePart part,
                                                          ParameterId id) {
  return StoreOf(part).Open(IndexOf(id));
}

absl::Status OptimizerShard::Close(StatePart part, ParameterId id,
                                   bool changed) {
  return StoreOf(part).Close(IndexOf(id), changed);
}

absl::Status OptimizerShard::Settle() {
  absl::Status status;
  for (StatePart part : kOptimizerParts) {
    status.Update(StoreOf(part).Settle());
  }
  return status;
}

absl::Status OptimizerShard::Step(int64_t step, const offload::StepScale& scale,
                                  MatrixUpdates* matrices,
                                  std::span<const ElementScale> factors) {
  for (size_t i = 0; i < elementwise_; ++i) {
    if (options_.overlap && i + 1 < elementwise_) Announce(owned_[i + 1]);
    TESSERA_RETURN_IF_ERROR(StepOne(step, scale, owned_[i]));
  }
  // A rank that owns no matrices may have to update matrices of other ranks.
  if (matrices != nullptr) {
    MatrixShards shards(*this, step, scale);
    TESSERA_RETURN_IF_ERROR(matrices->Run(shards));
  }
  while (!factors.empty()) {
    const auto end = std::find_if(
        factors.begin(), factors.end(),
        [&](const auto& factor) { return factor.id != factors[0].id; });
    const auto count = static_cast<size_t>(end - factors.begin());
    TESSERA_RETURN_IF_ERROR(ScaleElements(factors.first(count)));
    factors = factors.subspan(count);
  }
  return Settle();
}

absl::Status OptimizerShard::ScaleElements(
    std::span<const ElementScale> factors) {
  const ParameterId id = factors[0].id;
  const Extent extent = context_.OwnExtent(id);
  const auto begin_of = [&](const ElementScale& factor) {
    return std::max(factor.begin, extent.begin);
  };
  const auto end_of = [&](const ElementScale& factor) {
    return std::min(factor.end, extent.end);
  };
  if (std::none_of(factors.begin(), factors.end(), [&](const auto& factor) {
        return begin_of(factor) < end_of(factor);
      })) {
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const offload::ParameterRange weights,
                           OpenWeights(id, "scale weights"));
  for (const ElementScale& factor : factors) {
    const int64_t first = begin_of(factor) - extent.begin;
    const int64_t count = end_of(factor) - begin_of(factor);
    if (count <= 0) continue;
    const auto part = [&](const offload::TypedSpan& whole) {
      return whole.empty()
                 ? whole
                 : offload::TypedSpan(whole.At(first), whole.dtype(), count);
    };
    TESSERA_RETURN_IF_ERROR(ops().Run(
        op::Scale{factor.factor, part(weights.parameter), part(weights.copy)}));
  }
  TESSERA_RETURN_IF_ERROR(Close(StatePart::kMaster, id, /*changed=*/true));
  return CloseValue(id);
}

void OptimizerShard::Announce(ParameterId id) {
  // A slot that is only padding is not opened.
  if (context_.OwnExtent(id).size() == 0) return;
  for (StatePart part : kOptimizerParts) {
    StoreOf(part).Announce(IndexOf(id));
  }
  gradients_.AnnounceOwn(id);
  weights_.AnnounceOwn(id);
}

absl::Status OptimizerShard::StepOne(int64_t step,
                                     const offload::StepScale& scale,
                                     ParameterId id) {
  if (context_.OwnExtent(id).size() == 0) return absl::OkStatus();
  if (early_[id].is_stepped) {
    if (scale.clip_factor == 1) {
      early_[id].is_stepped = false;
      return CloseValue(id);
    }
    TESSERA_RETURN_IF_ERROR(Undo(id));
  }
  TESSERA_ASSIGN_OR_RETURN(const offload::ParameterRange range,
                           OpenRange(id, "step a parameter"));
  TESSERA_RETURN_IF_ERROR(StepRange(id, step, scale, range));
  TESSERA_RETURN_IF_ERROR(CloseRange(id));
  return CloseValue(id);
}

absl::StatusOr<offload::ParameterRange> OptimizerShard::OpenRange(
    ParameterId id, std::string_view why) {
  TESSERA_ASSIGN_OR_RETURN(offload::ParameterRange range, OpenWeights(id, why));
  TESSERA_ASSIGN_OR_RETURN(range.gradient, gradients_.OpenForStep(id));
  TESSERA_ASSIGN_OR_RETURN(range.first,
                           OpenMoment(StatePart::kFirstMoment, id));
  TESSERA_ASSIGN_OR_RETURN(range.second,
                           OpenMoment(StatePart::kSecondMoment, id));
  return range;
}

absl::StatusOr<offload::ParameterRange> OptimizerShard::OpenWeights(
    ParameterId id, std::string_view why) {
  const ModelParameter& parameter = context_.model()[id];
  const Extent extent = context_.OwnExtent(id);
  offload::ParameterRange range;
  range.name = parameter.name();
  // The offset in the parameter, so that rounding does not depend on the
  // sharding.
  range.begin = extent.begin;
  range.whole = parameter.elements;
  range.decays = options_.decayed == DecayedParameters::kAll ||
                 parameter.spec.shape.size() >= 2 ||
                 GroupOf(id).rates.weight_decay.has_value();
  TESSERA_ASSIGN_OR_RETURN(range.parameter, host_ == nullptr
                                                ? weights_.OpenOwn(id)
                                                : host_->OpenValue(id, why));
  if (FormatOf(StatePart::kMaster, id)) {
    range.copy = range.parameter;
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> master,
                             Open(StatePart::kMaster, id));
    range.parameter =
        offload::TypedSpan(master.data(), DType::kF32, extent.size());
  }
  return range;
}

absl::StatusOr<offload::MomentSpan> OptimizerShard::OpenMoment(StatePart part,
                                                               ParameterId id) {
  if (!FormatOf(part, id)) return offload::MomentSpan();
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, Open(part, id));
  const Extent extent = context_.OwnExtent(id);
  TESSERA_ASSIGN_OR_RETURN(
      const offload::MomentSpan moment,
      offload::MomentSpan::Over(context_.model()[id].dtype() == DType::kF64
                                    ? offload::MomentFormat::F64()
                                    : options_.moments,
                                extent.slot, bytes));
  return moment.Piece(0, extent.size());
}

absl::Status OptimizerShard::StepRange(ParameterId id, int64_t step,
                                       const offload::StepScale& scale,
                                       const offload::ParameterRange& range) {
  return std::visit(
      [&](const auto& optimizer) {
        return ops().Step(*optimizer, step, scale, range);
      },
      GroupOf(id).optimizer);
}

absl::Status OptimizerShard::CloseRange(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(gradients_.CloseAfterStep(id));
  for (StatePart part : kOptimizerParts) {
    TESSERA_RETURN_IF_ERROR(Close(part, id, /*changed=*/true));
  }
  return absl::OkStatus();
}

absl::Status OptimizerShard::CloseValue(ParameterId id) {
  return host_ == nullptr ? weights_.CloseOwn(id, /*changed=*/true)
                          : host_->CloseValue(id);
}

bool OptimizerShard::MaySpeculate(ParameterId id) const {
  return host_->IsDownloaded(id) && !early_[id].is_stepped &&
         !gradients_.in_tier() && !weights_.InTier(id) &&
         std::all_of(std::begin(stores_), std::end(stores_),
                     [&](const std::unique_ptr<ShardStore>& store) {
                       return store->IsInPlace(IndexOf(id));
                     });
}

absl::StatusOr<int64_t> OptimizerShard::Speculate(int64_t step, double unscale,
                                                  const Event& known) {
  int64_t stepped = 0;
  if (host_ == nullptr || options_.speculative_bytes == 0) return stepped;
  for (const ParameterId id : host_->downloads()) {
    if (!MaySpeculate(id)) continue;
    TESSERA_ASSIGN_OR_RETURN(const bool is_known, known.Test());
    if (is_known) break;
    TESSERA_ASSIGN_OR_RETURN(offload::ParameterRange range,
                             OpenRange(id, "step a parameter early"));
    TESSERA_ASSIGN_OR_RETURN(Buffer* const undo, UndoOf(id, range));
    if (undo != nullptr) {
      range.undo = undo->bytes();
      TESSERA_RETURN_IF_ERROR(
          StepRange(id, step, {.unscale = unscale, .clip_factor = 1}, range));
      early_[id].is_stepped = true;
      ++stepped;
    }
    TESSERA_RETURN_IF_ERROR(CloseRange(id));
  }
  return stepped;
}

absl::StatusOr<Buffer*> OptimizerShard::UndoOf(
    ParameterId id, const offload::ParameterRange& range) {
  Buffer& undo = early_[id].undo;
  if (undo.size() > 0) return &undo;
  const int64_t bytes = offload::UndoBytes(range, /*moments=*/2);
  if (bytes > options_.speculative_bytes - undo_bytes_) return nullptr;
  TESSERA_ASSIGN_OR_RETURN(
      undo, Buffer::Allocate(HostMemory(), static_cast<size_t>(bytes)));
  undo_bytes_ += bytes;
  return &undo;
}

absl::Status OptimizerShard::Undo(ParameterId id) {
  TESSERA_ASSIGN_OR_RETURN(offload::ParameterRange range,
                           OpenRange(id, "undo a step"));
  range.undo = early_[id].undo.bytes();
  TESSERA_RETURN_IF_ERROR(std::visit(
      [&](const auto& optimizer) {
        return optimizer->Undo({&range, 1});
      },
      GroupOf(id).optimizer));
  early_[id].is_stepped = false;
  return CloseRange(id);
}

absl::Status OptimizerShard::CancelSpeculation() {
  for (const ParameterId id : owned_) {
    if (!early_[id].is_stepped) continue;
    TESSERA_RETURN_IF_ERROR(Undo(id));
  }
  return absl::OkStatus();
}

const StateLayout& MatrixShards::layout() const {
  return shard_.context_.layout;
}

topology::Rank MatrixShards::rank() const { return shard_.context_.rank; }

absl::StatusOr<offload::ParameterRange> MatrixShards::ZeroRange(
    ParameterId id, int64_t begin, const offload::TypedSpan& values) {
  TESSERA_RETURN_IF_ERROR(shard_.ops().Zero(
      {values.data(), static_cast<size_t>(values.size_in_bytes())}));
  const ModelParameter& parameter = layout().model()[id];
  return offload::ParameterRange{.name = parameter.name(),
                                 .begin = begin,
                                 .whole = parameter.elements,
                                 .parameter = values};
}

absl::Status MatrixShards::OpenGradientOf(ParameterId id,
                                          offload::ParameterRange& range) {
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan gradient,
                           shard_.gradients_.OpenForStep(id));
  const int64_t first = range.begin - shard_.context_.OwnExtent(id).begin;
  range.gradient = offload::ConstTypedSpan(gradient.At(first), gradient.dtype(),
                                           range.parameter.size());
  return absl::OkStatus();
}

absl::StatusOr<offload::MomentSpan> MatrixShards::OpenMomentOf(
    StatePart part, ParameterId id, const offload::ParameterRange& range) {
  TESSERA_ASSIGN_OR_RETURN(const offload::MomentSpan moment,
                           shard_.OpenMoment(part, id));
  return moment.Piece(range.begin - shard_.context_.OwnExtent(id).begin,
                      range.parameter.size());
}

absl::Status MatrixShards::WriteDirection(ParameterId id, int64_t begin,
                                          const offload::TypedSpan& direction) {
  TESSERA_ASSIGN_OR_RETURN(offload::ParameterRange range,
                           ZeroRange(id, begin, direction));
  TESSERA_RETURN_IF_ERROR(OpenGradientOf(id, range));
  TESSERA_ASSIGN_OR_RETURN(range.first,
                           OpenMomentOf(StatePart::kFirstMoment, id, range));
  TESSERA_RETURN_IF_ERROR(
      shard_.ops().Step(*shard_.matrix_sgd_, step_, scale_, range));
  TESSERA_RETURN_IF_ERROR(shard_.gradients_.CloseAfterStep(id));
  return shard_.Close(StatePart::kFirstMoment, id, /*changed=*/true);
}

absl::Status MatrixShards::WriteAdamWUpdate(ParameterId id, int64_t begin,
                                            const offload::TypedSpan& values) {
  TESSERA_ASSIGN_OR_RETURN(offload::ParameterRange range,
                           ZeroRange(id, begin, values));
  TESSERA_RETURN_IF_ERROR(OpenGradientOf(id, range));
  TESSERA_ASSIGN_OR_RETURN(range.first,
                           OpenMomentOf(StatePart::kFirstMoment, id, range));
  TESSERA_ASSIGN_OR_RETURN(range.second,
                           OpenMomentOf(StatePart::kSecondMoment, id, range));
  TESSERA_RETURN_IF_ERROR(
      shard_.ops().Step(*shard_.matrix_adamw_, step_, scale_, range));
  TESSERA_RETURN_IF_ERROR(shard_.gradients_.CloseAfterStep(id));
  TESSERA_RETURN_IF_ERROR(
      shard_.Close(StatePart::kFirstMoment, id, /*changed=*/true));
  return shard_.Close(StatePart::kSecondMoment, id, /*changed=*/true);
}

absl::Status MatrixShards::WriteFirstMoment(ParameterId id, int64_t begin,
                                            const offload::TypedSpan& values) {
  TESSERA_ASSIGN_OR_RETURN(offload::ParameterRange range,
                           ZeroRange(id, begin, values));
  TESSERA_ASSIGN_OR_RETURN(const offload::MomentSpan moment,
                           OpenMomentOf(StatePart::kFirstMoment, id, range));
  const DType dtype = shard_.FormatOf(StatePart::kFirstMoment, id)->dtype;
  range.gradient = offload::ConstTypedSpan(moment.values, dtype, moment.size);
  const double beta1 = shard_.options_.adamw.beta1;
  const double bias = 1 - std::pow(beta1, static_cast<double>(step_));
  TESSERA_RETURN_IF_ERROR(shard_.ops().Step(*shard_.matrix_sgd_, step_,
                                            {.unscale = 1 / bias}, range));
  return shard_.Close(StatePart::kFirstMoment, id, /*changed=*/false);
}

absl::Status MatrixShards::WriteGradient(ParameterId id, int64_t begin,
                                         const offload::TypedSpan& values) {
  TESSERA_ASSIGN_OR_RETURN(offload::ParameterRange range,
                           ZeroRange(id, begin, values));
  TESSERA_RETURN_IF_ERROR(OpenGradientOf(id, range));
  TESSERA_RETURN_IF_ERROR(
      shard_.ops().Step(*shard_.matrix_sgd_, step_, scale_, range));
  return shard_.gradients_.CloseAfterStep(id);
}

absl::Status MatrixShards::Apply(ParameterId id, int64_t begin,
                                 const offload::ConstTypedSpan& update) {
  TESSERA_ASSIGN_OR_RETURN(const offload::ParameterRange weights,
                           OpenWeights(id));
  TESSERA_RETURN_IF_ERROR(ApplyTo(weights, id, begin - weights.begin, update));
  return CloseWeights(id, /*changed=*/true);
}

double MatrixShards::LearningRateOf(ParameterId id) const {
  return shard_.GroupOf(id).matrices->options().learning_rate;
}

ThreadPool* MatrixShards::pool() const { return shard_.pool_.get(); }

absl::StatusOr<offload::ConstTypedSpan> MatrixShards::OpenGradient(
    ParameterId id) {
  return shard_.gradients_.OpenForStep(id);
}

absl::Status MatrixShards::CloseGradient(ParameterId id) {
  return shard_.gradients_.CloseAfterStep(id);
}

absl::StatusOr<offload::ParameterRange> MatrixShards::OpenWeights(
    ParameterId id) {
  return shard_.OpenWeights(id, "update a matrix");
}

absl::Status MatrixShards::CloseWeights(ParameterId id, bool changed) {
  TESSERA_RETURN_IF_ERROR(shard_.Close(StatePart::kMaster, id, changed));
  return shard_.weights_.CloseOwn(id, changed);
}

absl::Status MatrixShards::ApplyTo(const offload::ParameterRange& weights,
                                   ParameterId id, int64_t first,
                                   const offload::ConstTypedSpan& update) {
  offload::ParameterRange range = weights;
  range.begin += first;
  for (offload::TypedSpan* const part : {&range.parameter, &range.copy}) {
    if (part->empty()) continue;
    *part = {part->At(first), part->dtype(), update.size()};
  }
  range.gradient = update;
  return shard_.ops().Step(*shard_.GroupOf(id).matrices, step_, {}, range);
}

absl::StatusOr<offload::TypedSpan> MatrixShards::OpenFrozen(ParameterId id) {
  return shard_.weights_.OpenOwn(id);
}

absl::Status MatrixShards::CloseFrozen(ParameterId id, bool changed) {
  return shard_.weights_.CloseOwn(id, changed);
}

}  // namespace tessera::zero3
