#include "tools/train/model/sharded_model.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "offload/optimizer/parameter_range.h"

namespace tessera::train {

namespace {

// FNV-1a (Fowler, Noll, Vo) in 64 bits. Must not change.
uint64_t HashOf(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

constexpr int64_t kElementsAtATime = 4096;

// `count` elements from `first` on.
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
  if (options_.tied_embeddings && name == "head.output.weight") {
    name = "embedding.weight";
  }
  std::vector<double> drawn;
  std::vector<std::byte> rounded;
  const int64_t total = elements.element_count();
  for (int64_t first = 0; first < total; first += kElementsAtATime) {
    const int64_t count = std::min(kElementsAtATime, total - first);
    drawn.resize(static_cast<size_t>(count));
    parameter.DrawNormals({.seed = options_.seed, .stream = HashOf(name)},
                          options_.deviation, begin + first, drawn);
    rounded.resize(static_cast<size_t>(count * SizeInBytes(parameter.dtype())));
    TESSERA_RETURN_IF_ERROR(Convert(DType::kF64,
                                    std::as_bytes(std::span(drawn)),
                                    parameter.dtype(), rounded));
    TESSERA_RETURN_IF_ERROR(Convert(parameter.dtype(), rounded,
                                    elements.dtype(),
                                    BytesOf(elements, first, count)));
  }
  return absl::OkStatus();
}

namespace {

// Rows of which this rank is the primary holder.
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
  TESSERA_RETURN_IF_ERROR(
      state_->Fill([&](const zero3::ModelParameter& parameter, int64_t begin,
                       TensorView elements) {
        return first(*parameters_[static_cast<size_t>(parameter.id.value())],
                     begin, elements);
      }));
  for (tensor_parallel::Parameter* parameter : parameters_) {
    parameter->Release();
    parameter->ReleaseGradient();
  }
  return absl::OkStatus();
}

// Values that are never gathered: all below stage 3, small ones at stage 3.
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
  return state_->OwnGradient(IdOf(&parameter));
}

}  // namespace tessera::train
