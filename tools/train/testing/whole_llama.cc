#include "tools/train/testing/whole_llama.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "tensor_parallel/context/sequence_layout.h"

namespace tessera::train {

namespace tp = tensor_parallel;

absl::StatusOr<std::unique_ptr<WholeLlama>> WholeLlama::Create(
    tp::Ops& ops, const RunOptions& options, TokenSource& tokens) {
  std::unique_ptr<WholeLlama> model(new WholeLlama(ops, tokens));
  TESSERA_ASSIGN_OR_RETURN(const tp::SequenceLayout layout,
                           tp::SequenceLayout::Contiguous(options.length, 1));
  const tp::TensorGroup alone(ops);
  TESSERA_ASSIGN_OR_RETURN(model->loss_,
                           Tensor::Create(DType::kF64, {{1}}, alone.memory()));
  std::vector<int32_t> windows;
  for (int64_t i = 0; i < LlamaLayers::WindowsOf(options.model); ++i) {
    windows.push_back(static_cast<int32_t>(i));
  }
  TESSERA_ASSIGN_OR_RETURN(
      model->layers_,
      LlamaLayers::Create(alone, {alone, layout}, options, windows));
  for (size_t i = 0; i < windows.size(); ++i) {
    model->stages_.push_back(
        MakeLlamaStage(*model->layers_, i, model->passes_));
    if (i + 1 == windows.size()) break;
    TESSERA_ASSIGN_OR_RETURN(const pipeline::TensorSpec spec,
                             model->stages_.back()->OutputSpec(nullptr));
    for (auto* list : {&model->tensors_, &model->gradients_}) {
      TESSERA_ASSIGN_OR_RETURN(
          Tensor tensor,
          Tensor::Create(spec.dtype, spec.shape, alone.memory()));
      list->push_back(std::move(tensor));
    }
  }
  for (size_t i = 0; i + 1 < windows.size(); ++i) {
    model->views_.push_back(model->tensors_[i].view());
    model->const_views_.push_back(model->views_.back());
    model->gradient_views_.push_back(model->gradients_[i].view());
    model->const_gradient_views_.push_back(model->gradient_views_.back());
  }
  return model;
}

absl::StatusOr<double> WholeLlama::Forward() {
  const TensorView loss = loss_->view();
  for (size_t i = 0; i < stages_.size(); ++i) {
    const bool is_last = i + 1 == stages_.size();
    TESSERA_RETURN_IF_ERROR(
        stages_[i]->Forward({.input = i == 0 ? nullptr : &const_views_[i - 1],
                             .output = is_last ? nullptr : &views_[i],
                             .loss = is_last ? &loss : nullptr}));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const Download download,
      passes_.staging.StartDownload(
          {loss.data(), static_cast<size_t>(loss.size_in_bytes())}));
  TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                           download.Wait());
  double value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

pipeline::BackwardPass WholeLlama::PassOf(size_t window) {
  const bool is_last = window + 1 == stages_.size();
  return {
      .input = window == 0 ? nullptr : &const_views_[window - 1],
      .output_gradient = is_last ? nullptr : &const_gradient_views_[window],
      .input_gradient = window == 0 ? nullptr : &gradient_views_[window - 1]};
}

absl::Status WholeLlama::Backward() {
  for (size_t i = stages_.size(); i-- > 0;) {
    TESSERA_RETURN_IF_ERROR(stages_[i]->Backward(PassOf(i)));
  }
  Release();
  return absl::OkStatus();
}

absl::Status WholeLlama::BackwardInput() {
  for (size_t i = stages_.size(); i-- > 0;) {
    TESSERA_RETURN_IF_ERROR(stages_[i]->BackwardInput(PassOf(i)));
  }
  return absl::OkStatus();
}

absl::Status WholeLlama::BackwardWeight() {
  for (size_t i = stages_.size(); i-- > 0;) {
    pipeline::BackwardPass pass = PassOf(i);
    pass.input_gradient = nullptr;
    TESSERA_RETURN_IF_ERROR(stages_[i]->BackwardWeight(pass));
  }
  Release();
  return absl::OkStatus();
}

void WholeLlama::Release() {
  for (auto& stage : stages_) stage->Release(0);
}

absl::Status WholeLlama::FinishGradients() {
  for (size_t i = 0; i < stages_.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(layers_->FinishGradients(i));
  }
  return absl::OkStatus();
}

}  // namespace tessera::train
