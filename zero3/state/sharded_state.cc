#include "zero3/state/sharded_state.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/tensor/tensor.h"

namespace tessera::zero3 {
namespace {

size_t IndexOf(ParameterId id) { return static_cast<size_t>(id.value()); }

std::vector<const Parameter*> TrainableOf(const ModelParameters& model) {
  std::vector<const Parameter*> parameters;
  for (const Parameter& parameter : model.all()) {
    if (parameter.trainable()) parameters.push_back(&parameter);
  }
  return parameters;
}

// Elements from `at` on of what this rank owns of a parameter.
absl::Status SetFirst(const TensorView& first, int64_t at,
                      const offload::TypedSpan& own,
                      std::span<std::byte> master) {
  const std::span<const std::byte> bytes(
      first.data(), static_cast<size_t>(first.size_in_bytes()));
  const int64_t width = SizeInBytes(own.dtype());
  TESSERA_RETURN_IF_ERROR(
      Convert(first.dtype(), bytes, own.dtype(),
              {own.data() + at * width,
               static_cast<size_t>(first.element_count() * width)}));
  if (master.empty()) return absl::OkStatus();
  std::copy(bytes.begin(), bytes.end(),
            master.begin() + at * SizeInBytes(first.dtype()));
  return absl::OkStatus();
}

}  // namespace

absl::Status ShardedState::Fill(Filler fill) {
  for (const Parameter& parameter : seat_.model().all()) {
    TESSERA_RETURN_IF_ERROR(FillOne(parameter, fill));
  }
  TESSERA_RETURN_IF_ERROR(optimizer_->Settle());
  return FinishRestoring(0);
}

// In blocks, so that no more is held than has to be.
absl::Status ShardedState::FillOne(const Parameter& parameter, Filler fill) {
  constexpr int64_t kBlockElements = int64_t{1} << 18;
  const Extent extent = seat_.OwnExtent(parameter.id);
  if (extent.size() == 0) return absl::OkStatus();
  const DType dtype =
      parameter.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  TESSERA_ASSIGN_OR_RETURN(
      Tensor block,
      Tensor::Create(dtype, {{std::min(kBlockElements, extent.size())}}));
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own,
                           own_values_->Open(parameter.id));
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> master,
      optimizer_->Open(OptimizerPart::kMaster, parameter.id));
  const bool has_values = seat_.device.ops->has_values();
  for (int64_t at = 0; has_values && at < extent.size(); at += kBlockElements) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView first,
        block.view().Narrow(0, 0,
                            std::min(kBlockElements, extent.size() - at)));
    TESSERA_RETURN_IF_ERROR(fill(parameter, extent.begin + at, first));
    TESSERA_RETURN_IF_ERROR(SetFirst(first, at, own, master));
  }
  TESSERA_RETURN_IF_ERROR(own_values_->Close(parameter.id, /*changed=*/true));
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
  for (ParameterId id : window) {
    TESSERA_RETURN_IF_ERROR(seat_.model().CheckId(id));
  }
  return live_ == nullptr ? absl::OkStatus() : Tell(live_->Acquire(window));
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
  TESSERA_RETURN_IF_ERROR(gradients_->CheckOpen(id));
  return Tell(gradients_->MarkReady(id));
}

absl::Status ShardedState::Tell(absl::Status status) {
  // Either this call changed nothing, or the others know already.
  if (status.ok() || absl::IsFailedPrecondition(status)) return status;
  const std::string reason =
      absl::StrCat("rank ", groups_.agree->rank().value(), " of ",
                   groups_.agree->name(), " failed: ", status.message());
  for (collectives::Communicator* group :
       {groups_.gather.get(), groups_.reduce.get(), groups_.agree.get(),
        groups_.replicas.get(), groups_.model.get()}) {
    if (group != nullptr) group->Abort(reason);
  }
  return status;
}

absl::Status ShardedState::SetLearningRate(double learning_rate) {
  return optimizer_->SetLearningRate(learning_rate);
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
        seat_.device.ops->Measure(offload::ConstTypedSpan(
            own.At(begin - extent.begin), own.dtype(), end - begin)));
    all.Add(one);
  }
  TESSERA_RETURN_IF_ERROR(gradients_->CloseOwn(parameter.id));
  return all;
}

absl::StatusOr<offload::GradientStatistics> ShardedState::MeasureOwn() {
  offload::GradientStatistics all;
  const std::vector<const Parameter*> parameters = TrainableOf(seat_.model());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (options_.overlap && i + 1 < parameters.size()) {
      gradients_->AnnounceOwn(parameters[i + 1]->id);
    }
    TESSERA_ASSIGN_OR_RETURN(const offload::GradientStatistics one,
                             MeasureOne(*parameters[i]));
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
  absl::StatusOr<StepReport> report = StepAlone();
  TESSERA_RETURN_IF_ERROR(Tell(report.status()));
  return report;
}

absl::StatusOr<StepReport> ShardedState::StepAlone() {
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
