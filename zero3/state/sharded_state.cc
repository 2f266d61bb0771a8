#include "zero3/state/sharded_state.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/codec/block_kernels.h"

namespace tessera::zero3 {
namespace {

// Stage 0 has the whole state on every rank, as with a single rank.
absl::StatusOr<StateContext> SeatOf(const ModelParameters& model,
                                    const ShardedStateOptions& options,
                                    const collectives::Communicator& shard) {
  const bool is_partitioned = options.stage > 0;
  LayoutOptions layout = {
      .kind = options.layout,
      .ranks = is_partitioned ? shard.size() : 1,
      .alignment = std::lcm(
          options.frozen_codec == nullptr
              ? options.alignment
              : std::lcm(options.alignment, int64_t{offload::kNf4Block}),
          std::max<int64_t>(options.moments.block, 1)),
      .small_below = options.stage == 3 ? options.persistence_threshold : 0};
  TESSERA_ASSIGN_OR_RETURN(StateLayout created,
                           StateLayout::Create(model, layout));
  StateDevice device(options.device, options.queue_or_host());
  if (device.accounting == nullptr) {
    device.accounting =
        std::make_shared<offload::Accounting>("device", offload::kUnlimited);
  }
  if (options.ops != nullptr) device.ops = options.ops;
  return StateContext{std::move(created),
                      is_partitioned ? shard.rank() : topology::Rank(0),
                      std::move(device)};
}

// The near memory for the slots that the prefetcher of the host, or that of the
// device, reads from tiers.
int64_t NearBytesOf(const StateContext& context,
                    const ShardedStateOptions& options, bool of_host) {
  std::vector<OffloadedBytes> by_slot;
  for (const Extent& extent : context.layout.ExtentsOf(context.rank)) {
    const ModelParameter& parameter = context.model()[extent.parameter];
    OffloadedBytes& bytes = by_slot.emplace_back();
    if (!of_host && options.ParameterTierOf(parameter.id) != nullptr &&
        !IsKeptWhole(context.layout, options, parameter)) {
      bytes.value = extent.slot * SizeInBytes(parameter.dtype());
    }
    if (!parameter.trainable()) continue;
    bytes.update = bytes.value;
    if (!of_host && options.gradient_tier != nullptr) {
      bytes.update +=
          extent.slot * SizeInBytes(options.GradientTypeOf(parameter));
    }
    if (options.optimizer_tier != nullptr && of_host == options.StepsOnHost()) {
      bytes.update +=
          OptimizerShard::BytesOfSlot(parameter, extent.slot, options);
    }
  }
  return NearBytes(by_slot, options.overlap ? 3 : 1,
                   options.overlap
                       ? std::min(options.prefetch, context.model().count()) + 1
                       : 1);
}

}  // namespace

ShardedState::ShardedState(const StateContext& context,
                           const ShardedStateOptions& options,
                           StateGroups groups)
    : context_(context),
      options_(options),
      groups_(std::move(groups)),
      scaler_(options.loss_scale),
      staging_(context.queue()) {}

absl::StatusOr<std::unique_ptr<ShardedState>> ShardedState::Create(
    const ModelParameters& model, const ShardedStateOptions& options,
    const ShardedStateGroups& groups) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options, model));
  if (groups.shard == nullptr) {
    return absl::InvalidArgumentError(
        "a sharded state needs a shard group, of one rank at least");
  }
  TESSERA_ASSIGN_OR_RETURN(StateContext context,
                           SeatOf(model, options, *groups.shard));
  TESSERA_ASSIGN_OR_RETURN(
      StateGroups own, StateGroups::Create(groups, options.hpz_partition_size));
  std::unique_ptr<ShardedState> state(
      new ShardedState(context, options, std::move(own)));
  TESSERA_RETURN_IF_ERROR(state->CreateParts());
  return state;
}

absl::Status ShardedState::CreateParts() {
  const bool on_host = options_.StepsOnHost();
  prefetch_ = std::make_shared<ShardPrefetch>(ShardPrefetch::Options{
      .near_bytes = NearBytesOf(context_, options_, /*of_host=*/false),
      .reads_ahead = options_.overlap && options_.prefetch > 0,
      .device = context_.device});
  TESSERA_ASSIGN_OR_RETURN(
      weights_, ModelWeights::Create(context_, options_, groups_, prefetch_));
  if (on_host) {
    host_prefetch_ = std::make_shared<ShardPrefetch>(ShardPrefetch::Options{
        .near_bytes = NearBytesOf(context_, options_, /*of_host=*/true),
        .reads_ahead = options_.overlap && options_.prefetch > 0,
        .device = HostOf(context_.device)});
    host_copies_ = std::make_unique<HostCopies>(context_, *weights_, prefetch_);
  }
  TESSERA_ASSIGN_OR_RETURN(
      gradients_, GradientReducer::Create(context_, options_, groups_,
                                          prefetch_, host_copies_.get()));
  TESSERA_ASSIGN_OR_RETURN(clipping_,
                           GradientClipping::Create(context_, options_, groups_,
                                                    *gradients_, staging_));
  TESSERA_ASSIGN_OR_RETURN(
      optimizer_, OptimizerShard::Create(context_, options_, *weights_,
                                         *gradients_, host_copies_.get(),
                                         on_host ? host_prefetch_ : prefetch_));
  return absl::OkStatus();
}

// The members' destructors do not wait for work that uses several members.
ShardedState::~ShardedState() { queue().Synchronize().IgnoreError(); }

absl::Status ShardedState::AbortOnError(absl::Status status) {
  // Either this call had no side effects, or the other ranks already have the
  // error.
  if (status.ok() || absl::IsFailedPrecondition(status)) return status;
  const std::string reason =
      absl::StrCat("rank ", groups_.agree->rank().value(), " of ",
                   groups_.agree->name(), " failed: ", status.message());
  gradients_->Abort(reason);
  groups_.Abort(reason);
  return status;
}

absl::Status ShardedState::Fill(Filler fill) {
  TESSERA_RETURN_IF_ERROR(FillValues(context_, *weights_, *optimizer_, staging_,
                                     options_.fill_threads, fill));
  return FinishRestoring(0);
}

absl::Status ShardedState::FinishRestoring(int64_t steps) {
  steps_ = steps;
  return weights_->Publish();
}

absl::Status ShardedState::SetLearningRate(double learning_rate) {
  return optimizer_->SetLearningRate(learning_rate);
}

absl::Status ShardedState::CheckIds(std::span<const ParameterId> window) const {
  for (ParameterId id : window) {
    TESSERA_RETURN_IF_ERROR(context_.model().CheckId(id));
  }
  return absl::OkStatus();
}

// An evaluation loads blocks when it uses them, outside of the steps whose
// order of uses the prefetcher follows.
absl::Status ShardedState::BeginTraffic() {
  return is_evaluating_ ? absl::OkStatus() : AbortOnError(BeginStepOfTiers());
}

absl::Status ShardedState::BeginStepOfTiers() {
  TESSERA_RETURN_IF_ERROR(prefetch_->BeginStep());
  return host_prefetch_ == nullptr ? absl::OkStatus()
                                   : host_prefetch_->BeginStep();
}

absl::StatusOr<ShardTraffic> ShardedState::EndStepOfTiers() {
  TESSERA_ASSIGN_OR_RETURN(ShardTraffic traffic, prefetch_->EndStep());
  if (host_prefetch_ == nullptr) return traffic;
  TESSERA_ASSIGN_OR_RETURN(const ShardTraffic host, host_prefetch_->EndStep());
  const int64_t near_bytes = traffic.near_bytes + host.near_bytes;
  traffic.Add(host);
  traffic.near_bytes = near_bytes;
  return traffic;
}

absl::Status ShardedState::EndEvaluation() {
  is_evaluating_ = false;
  return AbortOnError(weights_->EndStep());
}

absl::Status ShardedState::AnnounceGather(std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(CheckIds(window));
  TESSERA_RETURN_IF_ERROR(BeginTraffic());
  weights_->Announce(window);
  return absl::OkStatus();
}

absl::Status ShardedState::StartGather(std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(CheckIds(window));
  TESSERA_RETURN_IF_ERROR(BeginTraffic());
  return AbortOnError(weights_->Start(window));
}

absl::Status ShardedState::AwaitGather(std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(CheckIds(window));
  return AbortOnError(weights_->Wait(window));
}

absl::Status ShardedState::Acquire(std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(StartGather(window));
  return AwaitGather(window);
}

absl::StatusOr<TensorView> ShardedState::Value(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(context_.model().CheckId(id));
  absl::StatusOr<TensorView> value = weights_->Value(id);
  TESSERA_RETURN_IF_ERROR(AbortOnError(value.status()));
  return value;
}

absl::Status ShardedState::Release(std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(CheckIds(window));
  return AbortOnError(weights_->Release(window));
}

absl::StatusOr<TensorView> ShardedState::Gradient(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(gradients_->CheckOpen(id));
  absl::StatusOr<TensorView> gradient = gradients_->Gradient(id);
  TESSERA_RETURN_IF_ERROR(AbortOnError(gradient.status()));
  return gradient;
}

absl::Status ShardedState::ReduceGradients(
    std::span<const ParameterId> window) {
  TESSERA_RETURN_IF_ERROR(gradients_->CheckWindow(window));
  TESSERA_RETURN_IF_ERROR(AbortOnError(BeginStepOfTiers()));
  return AbortOnError(gradients_->Start(window));
}

absl::StatusOr<TensorView> ShardedState::OwnGradient(ParameterId id) {
  TESSERA_RETURN_IF_ERROR(context_.model().CheckId(id));
  const absl::StatusOr<offload::TypedSpan> own = gradients_->OpenForChange(id);
  TESSERA_RETURN_IF_ERROR(AbortOnError(own.status()));
  const int64_t shape[] = {own->size()};
  return TensorView::Create(
      {own->data(), static_cast<size_t>(own->size_in_bytes())}, own->dtype(),
      shape, context_.device.memory->kind());
}

absl::StatusOr<UpdateReport> ShardedState::Step(MatrixUpdates* matrices) {
  TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics all, Measure());
  return StepMeasured(all, matrices);
}

absl::StatusOr<offload::GradientStatistics> ShardedState::Measure() {
  absl::StatusOr<offload::GradientStatistics> statistics = MeasureGradients();
  TESSERA_RETURN_IF_ERROR(AbortOnError(statistics.status()));
  return statistics;
}

absl::StatusOr<offload::GradientStatistics> ShardedState::MeasureGradients() {
  TESSERA_RETURN_IF_ERROR(BeginStepOfTiers());
  TESSERA_RETURN_IF_ERROR(weights_->EndStep());
  TESSERA_RETURN_IF_ERROR(gradients_->CheckComplete());
  TESSERA_RETURN_IF_ERROR(gradients_->Finish());
  UpdateReport report = {.loss_scale = scaler_.scale()};
  TESSERA_ASSIGN_OR_RETURN(const Event known, clipping_->StartMeasuring());
  if (may_speculate_) {
    TESSERA_ASSIGN_OR_RETURN(
        report.stepped_early,
        optimizer_->Speculate(steps_ + 1, 1 / report.loss_scale, known));
  }
  TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics own,
                           clipping_->MeasuredHere());
  report.non_finite = own.non_finite;
  TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics all,
                           clipping_->SumOverRanks(own));
  measured_ = report;
  return all;
}

absl::Status ShardedState::CheckFactors(
    std::span<const ElementScale> factors) const {
  const ModelParameters& model = layout().model();
  for (const ElementScale& factor : factors) {
    if (factor.id.value() < 0 || factor.id.value() >= model.count()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a factor on parameter ", factor.id.value(),
                       "; give one of the ", model.count(), " parameters"));
    }
    const ModelParameter& parameter = model[factor.id];
    if (parameter.trainable() && factor.begin >= 0 &&
        factor.begin <= factor.end && factor.end <= parameter.elements) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "a factor on elements ", factor.begin, " to ", factor.end, " of \"",
        parameter.name(), "\", which ",
        parameter.trainable()
            ? absl::StrCat("has ", parameter.elements, "; give a range of them")
            : "is frozen; give a trained parameter"));
  }
  return absl::OkStatus();
}

absl::StatusOr<UpdateReport> ShardedState::StepMeasured(
    const offload::GradientStatistics& of_model, MatrixUpdates* matrices,
    std::span<const ElementScale> factors) {
  TESSERA_RETURN_IF_ERROR(CheckFactors(factors));
  if (!measured_) {
    return absl::FailedPreconditionError(
        "StepMeasured of gradients that were not measured; call Measure first");
  }
  if ((matrices == nullptr) == options_.UpdatesMatrices()) {
    return absl::FailedPreconditionError(
        matrices == nullptr
            ? "a step of Muon, Shampoo or Adafactor without MatrixUpdates; "
              "give the step one"
            : "a step with MatrixUpdates, which only Muon, Shampoo and "
              "Adafactor take; give none");
  }
  absl::StatusOr<UpdateReport> report =
      UpdateWeights(of_model, matrices, factors);
  TESSERA_RETURN_IF_ERROR(AbortOnError(report.status()));
  return report;
}

absl::StatusOr<UpdateReport> ShardedState::UpdateWeights(
    const offload::GradientStatistics& of_model, MatrixUpdates* matrices,
    std::span<const ElementScale> factors) {
  UpdateReport report = *std::exchange(measured_, std::nullopt);
  report.skipped = !of_model.IsFinite();
  report.gradient_norm = of_model.Norm() / report.loss_scale;
  report.clip_factor = clipping_->FactorOf(report.gradient_norm);
  scaler_.Update(report.skipped);
  may_speculate_ = !report.skipped && report.clip_factor == 1;
  if (report.skipped) {
    TESSERA_RETURN_IF_ERROR(optimizer_->CancelSpeculation());
  } else {
    TESSERA_RETURN_IF_ERROR(optimizer_->Step(
        steps_ + 1,
        {.unscale = 1 / report.loss_scale, .clip_factor = report.clip_factor},
        matrices, factors));
    ++steps_;
    TESSERA_RETURN_IF_ERROR(weights_->Publish());
  }
  if (host_copies_ != nullptr) TESSERA_RETURN_IF_ERROR(host_copies_->EndStep());
  TESSERA_RETURN_IF_ERROR(gradients_->Clear());
  TESSERA_ASSIGN_OR_RETURN(report.traffic, EndStepOfTiers());
  total_traffic_.Add(report.traffic);
  return report;
}

}  // namespace tessera::zero3
