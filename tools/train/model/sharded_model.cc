#include "tools/train/model/sharded_model.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

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
    std::vector<ParameterWindow> windows, zero3::ShardedStateOptions options,
    const zero3::ShardedStateGroups& groups, const FirstValues& first,
    std::span<const tensor_parallel::Parameter* const> uncounted) {
  std::unique_ptr<ShardedModel> model(
      new ShardedModel(std::move(windows), options.stage));
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
  for (size_t w = 0; w < windows_.size(); ++w) {
    for (tensor_parallel::Parameter* parameter : windows_[w]) {
      const zero3::ParameterId id(static_cast<int64_t>(parameters_.size()));
      if (!ids_.insert({parameter, id}).second) continue;
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

absl::Status ShardedModel::BeginStep() {
  for (tensor_parallel::Parameter* parameter : parameters_) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView gradient,
                             state_->Gradient(IdOf(parameter)));
    TESSERA_RETURN_IF_ERROR(parameter->BindGradient(gradient));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::ReduceGradients() {
  for (auto it = parameters_.rbegin(); it != parameters_.rend(); ++it) {
    (*it)->ReleaseGradient();
    TESSERA_RETURN_IF_ERROR(state_->GradientReady(IdOf(*it)));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::Use(
    std::span<tensor_parallel::Parameter* const> parameters) {
  if (stage_ < 3) return absl::OkStatus();
  acquired_.clear();
  for (const tensor_parallel::Parameter* parameter : parameters) {
    acquired_.push_back(IdOf(parameter));
  }
  TESSERA_RETURN_IF_ERROR(state_->Acquire(acquired_));
  for (tensor_parallel::Parameter* parameter : parameters) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView value,
                             state_->Value(IdOf(parameter)));
    TESSERA_RETURN_IF_ERROR(parameter->Bind(value));
  }
  return absl::OkStatus();
}

absl::Status ShardedModel::Done(
    std::span<tensor_parallel::Parameter* const> parameters) {
  if (stage_ < 3) return absl::OkStatus();
  for (tensor_parallel::Parameter* parameter : parameters) {
    parameter->Release();
  }
  return state_->Release(acquired_);
}

}  // namespace tessera::train
