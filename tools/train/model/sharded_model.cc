#include "tools/train/model/sharded_model.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "offload/optimizer/typed_span.h"

namespace tessera::train {
namespace {

// What no rank before this one holds.
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
    zero3::ShardedStateOptions options, const zero3::ShardedStateGroups& groups,
    const FirstValues& first,
    std::span<const tensor_parallel::Parameter* const> uncounted) {
  std::unique_ptr<ShardedModel> model(new ShardedModel(windows, options.stage));
  TESSERA_ASSIGN_OR_RETURN(const zero3::ModelParameters parameters,
                           model->Describe());
  for (const tensor_parallel::Parameter* parameter : model->parameters_) {
    const bool counts = std::find(uncounted.begin(), uncounted.end(),
                                  parameter) == uncounted.end();
    options.counted_in_norm.push_back(counts
                                          ? PrimaryElements(*parameter)
                                          : std::vector<zero3::ElementRange>());
  }
  TESSERA_ASSIGN_OR_RETURN(
      model->state_, zero3::ShardedState::Create(parameters, options, groups));
  TESSERA_RETURN_IF_ERROR(model->SetValues(first));
  TESSERA_RETURN_IF_ERROR(model->BindWhole());
  return model;
}

absl::StatusOr<zero3::ModelParameters> ShardedModel::Describe() {
  zero3::ModelParameters::Builder builder;
  window_ids_.resize(windows_.size());
  for (size_t w = 0; w < windows_.size(); ++w) {
    for (tensor_parallel::Parameter* parameter : windows_[w]) {
      const zero3::ParameterId id(static_cast<int64_t>(parameters_.size()));
      const auto [found, is_new] = ids_.insert({parameter, id});
      window_ids_[w].push_back(found->second);
      if (!is_new) continue;
      parameters_.push_back(parameter);
      builder.Add({.name = parameter->name(),
                   .shape = parameter->local_shape(),
                   .dtype = parameter->dtype(),
                   .group = static_cast<int64_t>(w)});
    }
  }
  return builder.Build();
}

absl::Status ShardedModel::SetValues(const FirstValues& first) {
  TESSERA_RETURN_IF_ERROR(state_->Fill([&](const zero3::Parameter& parameter,
                                           int64_t begin, TensorView elements) {
    return first(*parameters_[static_cast<size_t>(parameter.id.value())], begin,
                 elements);
  }));
  for (tensor_parallel::Parameter* parameter : parameters_) {
    parameter->Release();
    parameter->ReleaseGradient();
  }
  return absl::OkStatus();
}

// Below stage 3 values stay where they are; at stage 3 the small ones do.
absl::Status ShardedModel::BindWhole() {
  if (stage_ == 3) return absl::OkStatus();
  for (tensor_parallel::Parameter* parameter : parameters_) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView value,
                             state_->Value(IdOf(parameter)));
    TESSERA_RETURN_IF_ERROR(parameter->Bind(value));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::StartGather(size_t window) {
  constexpr size_t kAnnounced = 2;
  const size_t next = ++gathers_;
  for (size_t i = next; i < next + kAnnounced && i < gather_order_.size();
       ++i) {
    TESSERA_RETURN_IF_ERROR(
        state_->AnnounceGather(window_ids_[gather_order_[i]]));
  }
  return state_->StartGather(window_ids_[window]);
}

absl::Status ShardedModel::UseValues(size_t window) {
  TESSERA_RETURN_IF_ERROR(state_->AwaitGather(window_ids_[window]));
  if (stage_ < 3) return absl::OkStatus();
  for (tensor_parallel::Parameter* parameter : windows_[window]) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView value,
                             state_->Value(IdOf(parameter)));
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
  return state_->Release(window_ids_[window]);
}

absl::Status ShardedModel::UseGradients(size_t window) {
  for (tensor_parallel::Parameter* parameter : windows_[window]) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView gradient,
                             state_->Gradient(IdOf(parameter)));
    TESSERA_RETURN_IF_ERROR(parameter->BindGradient(gradient));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::Reduce(size_t window) {
  const auto group = static_cast<int64_t>(window);
  const std::span<const zero3::ParameterId> own =
      state_->layout().model().group(group);
  for (const zero3::ParameterId id : own) {
    parameters_[static_cast<size_t>(id.value())]->ReleaseGradient();
  }
  return state_->ReduceGradients(own);
}

absl::StatusOr<TensorView> ShardedModel::OwnGradient(
    const tensor_parallel::Parameter& parameter) {
  TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own,
                           state_->OwnGradient(IdOf(&parameter)));
  const int64_t shape[] = {own.size()};
  return TensorView::Create(
      std::span(own.data(), static_cast<size_t>(own.size_in_bytes())),
      own.dtype(), shape);
}

}  // namespace tessera::train
