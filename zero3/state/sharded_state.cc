#include "zero3/state/sharded_state.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/tensor/tensor.h"

namespace tessera::zero3 {
namespace {

size_t IndexOf(ParameterId id) { return static_cast<size_t>(id.value()); }

absl::StatusOr<std::unique_ptr<collectives::Communicator>> Copy(
    collectives::Communicator& group, std::string_view name) {
  std::vector<topology::Rank> members;
  for (int64_t r = 0; r < group.size(); ++r) members.emplace_back(r);
  return group.Subgroup(members, absl::StrCat(group.name(), "/", name));
}

// Stage 0 has the whole state on every rank, as though that were alone.
absl::StatusOr<StateSeat> SeatOf(const ModelParameters& model,
                                 const ShardedStateOptions& options,
                                 const collectives::Communicator& shard) {
  const bool is_partitioned = options.stage > 0;
  LayoutOptions layout = {
      .kind = options.layout,
      .ranks = is_partitioned ? shard.size() : 1,
      .alignment = std::lcm(options.alignment,
                            std::max<int64_t>(options.moments.block, 1)),
      .small_below = options.stage == 3 ? options.persistence_threshold : 0};
  TESSERA_ASSIGN_OR_RETURN(StateLayout created,
                           StateLayout::Create(model, layout));
  auto device = options.device;
  if (device == nullptr) {
    device =
        std::make_shared<offload::Accounting>("device", offload::kUnlimited);
  }
  return StateSeat{std::move(created),
                   is_partitioned ? shard.rank() : topology::Rank(0),
                   std::move(device)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedState>> ShardedState::Create(
    const ModelParameters& model, const ShardedStateOptions& options,
    const ShardedStateGroups& groups) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options, model));
  if (groups.shard == nullptr) {
    return absl::InvalidArgumentError(
        "a sharded state needs a shard group, of one rank at least");
  }
  TESSERA_ASSIGN_OR_RETURN(StateSeat seat,
                           SeatOf(model, options, *groups.shard));
  std::unique_ptr<ShardedState> state(new ShardedState(seat, options));
  TESSERA_RETURN_IF_ERROR(state->JoinGroups(groups));
  TESSERA_RETURN_IF_ERROR(state->CreateParameters());
  TESSERA_RETURN_IF_ERROR(state->CreateGradients());
  TESSERA_RETURN_IF_ERROR(state->CreateOptimizer());
  return state;
}

absl::Status ShardedState::JoinGroups(const ShardedStateGroups& groups) {
  TESSERA_ASSIGN_OR_RETURN(groups_.gather, Copy(*groups.shard, "gather"));
  TESSERA_ASSIGN_OR_RETURN(groups_.reduce, Copy(*groups.shard, "reduce"));
  TESSERA_ASSIGN_OR_RETURN(groups_.agree, Copy(*groups.shard, "agree"));
  if (groups.replicas != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(groups_.replicas,
                             Copy(*groups.replicas, "reduce"));
  }
  if (groups.model != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(groups_.model, Copy(*groups.model, "norm"));
  }
  return absl::OkStatus();
}

absl::Status ShardedState::CreateParameters() {
  std::vector<ParameterId> whole;
  std::vector<ShardBlock> shards;
  std::vector<size_t> shard_of(static_cast<size_t>(seat_.model().count()),
                               LiveParameters::kNoShard);
  for (const Parameter& parameter : seat_.model().all()) {
    if (options_.stage < 3 || seat_.layout.IsSmall(parameter.id) ||
        parameter.elements == 0) {
      whole.push_back(parameter.id);
      continue;
    }
    shard_of[IndexOf(parameter.id)] = shards.size();
    shards.push_back(
        {absl::StrCat(options_.key_prefix, "parameter/", parameter.id.value()),
         seat_.OwnExtent(parameter.id).slot * SizeInBytes(parameter.dtype()),
         parameter.dtype()});
  }
  TESSERA_ASSIGN_OR_RETURN(
      whole_,
      WholeParameters::Create(seat_, std::move(whole), *groups_.gather));
  if (options_.stage == 3) {
    TESSERA_ASSIGN_OR_RETURN(
        value_shards_,
        ShardStore::Create(std::move(shards), offload::Purpose::kParameters,
                           options_.parameter_tier, seat_.device));
    guard_ = std::make_unique<UseGuard>(
        seat_.model(), *groups_.agree,
        std::vector<collectives::Communicator*>{groups_.gather.get(),
                                                groups_.reduce.get()});
    live_ = std::make_unique<LiveParameters>(
        seat_,
        LiveOptions{
            .reuse = {.max_live = options_.max_live_elements,
                      .max_reuse_distance = options_.max_reuse_distance},
            .prefetch_windows = options_.prefetch_windows},
        *groups_.gather, *guard_, *value_shards_, shard_of);
  }
  own_values_ = std::make_unique<OwnValues>(seat_, *whole_, value_shards_.get(),
                                            shard_of);
  return absl::OkStatus();
}

absl::Status ShardedState::CreateGradients() {
  std::vector<DType> dtypes;
  std::vector<ShardBlock> shards;
  std::vector<size_t> shard_of(static_cast<size_t>(seat_.model().count()));
  for (const Parameter& parameter : seat_.model().all()) {
    dtypes.push_back(SizeInBytes(parameter.dtype()) < 4
                         ? options_.gradient_dtype
                         : parameter.dtype());
    if (!parameter.trainable()) continue;
    shard_of[IndexOf(parameter.id)] = shards.size();
    shards.push_back(
        {absl::StrCat(options_.key_prefix, "gradient/", parameter.id.value()),
         seat_.OwnExtent(parameter.id).slot * SizeInBytes(dtypes.back()),
         dtypes.back()});
  }
  if (options_.stage >= 2) {
    TESSERA_ASSIGN_OR_RETURN(
        gradient_shards_,
        ShardStore::Create(std::move(shards), offload::Purpose::kGradients,
                           options_.gradient_tier, seat_.device));
  }
  TESSERA_ASSIGN_OR_RETURN(
      gradients_,
      GradientReducer::Create(
          seat_, dtypes,
          {.bucket_bytes = options_.bucket_bytes,
           .average = options_.average_gradients},
          {.shard = groups_.reduce.get(), .replicas = groups_.replicas.get()},
          gradient_shards_.get(), shard_of));
  return absl::OkStatus();
}

absl::Status ShardedState::CreateOptimizer() {
  TESSERA_ASSIGN_OR_RETURN(
      optimizer_,
      OptimizerShard::Create(seat_, {.adamw = options_.adamw,
                                     .moments = options_.moments,
                                     .tier = options_.optimizer_tier,
                                     .key_prefix = options_.key_prefix}));
  return absl::OkStatus();
}

absl::Status ShardedState::Fill(Filler fill) {
  for (const Parameter& parameter : seat_.model().all()) {
    TESSERA_RETURN_IF_ERROR(FillOne(parameter, fill));
  }
  TESSERA_RETURN_IF_ERROR(optimizer_->Settle());
  return FinishRestoring(0);
}

absl::Status ShardedState::FillOne(const Parameter& parameter, Filler fill) {
  const Extent extent = seat_.OwnExtent(parameter.id);
  if (extent.size() == 0) return absl::OkStatus();
  const DType dtype =
      parameter.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  TESSERA_ASSIGN_OR_RETURN(Tensor first,
                           Tensor::Create(dtype, {{extent.size()}}));
  TESSERA_RETURN_IF_ERROR(fill(parameter, extent.begin, first.view()));
  const std::span<const std::byte> bytes(
      first.view().data(), static_cast<size_t>(first.view().size_in_bytes()));
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own,
                           own_values_->Open(parameter.id));
  TESSERA_RETURN_IF_ERROR(
      Convert(dtype, bytes, parameter.dtype(),
              {own.data(), static_cast<size_t>(own.size_in_bytes())}));
  TESSERA_RETURN_IF_ERROR(own_values_->Close(parameter.id, /*changed=*/true));
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> master,
      optimizer_->Open(OptimizerPart::kMaster, parameter.id));
  if (!master.empty()) std::copy(bytes.begin(), bytes.end(), master.begin());
  return optimizer_->Close(OptimizerPart::kMaster, parameter.id,
                           /*changed=*/true);
}

absl::Status ShardedState::FinishRestoring(int64_t steps) {
  steps_ = steps;
  if (value_shards_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(value_shards_->Settle());
  }
  return whole_->Publish();
}

absl::Status ShardedState::Acquire(std::span<const ParameterId> window) {
  if (live_ != nullptr) return live_->Acquire(window);
  for (ParameterId id : window) {
    TESSERA_RETURN_IF_ERROR(seat_.model().CheckId(id));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> ShardedState::Value(ParameterId id) const {
  TESSERA_RETURN_IF_ERROR(seat_.model().CheckId(id));
  return whole_->Has(id) ? whole_->Value(id) : live_->Value(id);
}

absl::Status ShardedState::Release(std::span<const ParameterId> window) {
  return live_ == nullptr ? absl::OkStatus() : live_->Release(window);
}

absl::StatusOr<TensorView> ShardedState::Gradient(ParameterId id) {
  return gradients_->Gradient(id);
}

absl::Status ShardedState::GradientReady(ParameterId id) {
  return gradients_->MarkReady(id);
}

absl::Status ShardedState::SetLearningRate(double learning_rate) {
  return optimizer_->adamw().SetLearningRate(learning_rate);
}

// Every rank learns who lacks what, before anybody waits for its bucket.
absl::Status ShardedState::CheckAllReady() {
  if (options_.allow_unused) {
    while (const auto missing = gradients_->FirstMissing()) {
      TESSERA_RETURN_IF_ERROR(gradients_->MarkReady(*missing));
    }
    return absl::OkStatus();
  }
  const auto missing = gradients_->FirstMissing();
  const int64_t mine = missing ? missing->value() : -1;
  std::vector<int64_t> all(static_cast<size_t>(groups_.agree->size()));
  TESSERA_RETURN_IF_ERROR(
      groups_.agree->AllGather(collectives::ConstBuffer(std::span(&mine, 1)),
                               collectives::Buffer(std::span(all))));
  const auto first =
      std::find_if(all.begin(), all.end(), [](int64_t id) { return id >= 0; });
  if (first == all.end()) return absl::OkStatus();
  const std::string reason = absl::StrCat(
      "rank ", first - all.begin(), " of ", groups_.agree->name(),
      " has no gradient of parameter ", *first, " \"",
      seat_.model()[ParameterId(*first)].name(),
      "\" at the end of the step; every rank must make every gradient ready, "
      "or allow_unused be set");
  groups_.reduce->Abort(reason);
  return absl::FailedPreconditionError(reason);
}

absl::StatusOr<offload::GradientStatistics> ShardedState::MeasureOne(
    const Parameter& parameter) {
  offload::GradientStatistics all;
  const Extent extent = seat_.OwnExtent(parameter.id);
  TESSERA_ASSIGN_OR_RETURN(const offload::ConstTypedSpan own,
                           gradients_->OpenOwn(parameter.id));
  const ElementRange whole = {0, parameter.elements};
  for (const ElementRange& range :
       options_.counted_in_norm.empty()
           ? std::span(&whole, 1)
           : std::span<const ElementRange>(
                 options_.counted_in_norm[IndexOf(parameter.id)])) {
    const int64_t begin = std::max(range.begin, extent.begin);
    const int64_t end = std::min(range.end, extent.end);
    if (begin >= end) continue;
    TESSERA_ASSIGN_OR_RETURN(
        const offload::GradientStatistics one,
        offload::MeasureGradient(offload::ConstTypedSpan(
            own.At(begin - extent.begin), own.dtype(), end - begin)));
    all.Add(one);
  }
  TESSERA_RETURN_IF_ERROR(gradients_->CloseOwn(parameter.id));
  return all;
}

absl::StatusOr<offload::GradientStatistics> ShardedState::MeasureOwn() {
  offload::GradientStatistics all;
  for (const Parameter& parameter : seat_.model().all()) {
    if (!parameter.trainable()) continue;
    TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics one,
                             MeasureOne(parameter));
    all.Add(one);
  }
  return all;
}

absl::StatusOr<offload::GradientStatistics> ShardedState::MeasureAll() {
  TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics own, MeasureOwn());
  double sums[] = {own.sum_of_squares, static_cast<double>(own.non_finite)};
  const collectives::Buffer buffer{std::span(sums)};
  // At stage 0 every rank has measured everything.
  if (options_.stage > 0) {
    TESSERA_RETURN_IF_ERROR(
        groups_.agree->AllReduce(buffer, collectives::Reduction::Sum()));
  }
  if (groups_.model != nullptr) {
    TESSERA_RETURN_IF_ERROR(
        groups_.model->AllReduce(buffer, collectives::Reduction::Sum()));
  }
  return offload::GradientStatistics{sums[0], static_cast<int64_t>(sums[1])};
}

absl::StatusOr<StepReport> ShardedState::Step() {
  if (live_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(live_->EndStep());
    TESSERA_RETURN_IF_ERROR(guard_->EndStep());
  }
  TESSERA_RETURN_IF_ERROR(CheckAllReady());
  TESSERA_RETURN_IF_ERROR(gradients_->Finish());
  TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics statistics,
                           MeasureAll());
  StepReport report;
  report.loss_scale = scaler_.scale();
  report.skipped = !statistics.IsFinite();
  report.gradient_norm = statistics.Norm() / report.loss_scale;
  report.clip_factor =
      offload::ClipFactor(report.gradient_norm, options_.clip_norm);
  scaler_.Update(report.skipped);
  if (!report.skipped) {
    TESSERA_RETURN_IF_ERROR(optimizer_->Step(
        steps_ + 1,
        {.unscale = 1 / report.loss_scale, .clip_factor = report.clip_factor},
        *gradients_, *own_values_));
    TESSERA_RETURN_IF_ERROR(FinishRestoring(steps_ + 1));
  }
  gradients_->Clear();
  return report;
}

}  // namespace tessera::zero3
