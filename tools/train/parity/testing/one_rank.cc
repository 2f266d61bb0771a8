#include "tools/train/parity/testing/one_rank.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::train {

namespace tp = tensor_parallel;

namespace {

using Tensors = std::vector<std::vector<double>*>;

Tensors LayerTensors(std::string_view name, ReferenceLayer& layer) {
  if (name == "attention_norm.weight") return {&layer.attention_norm};
  if (name == "attention.qkv.weight") {
    return {&layer.query, &layer.key, &layer.value};
  }
  if (name == "attention.latent_down.weight") {
    if (layer.query_down.empty()) return {&layer.kv_down};
    return {&layer.query_down, &layer.kv_down};
  }
  if (name == "attention.query_up.weight") return {&layer.query};
  if (name == "attention.kv_up.weight") return {&layer.kv_up};
  if (name == "attention.qkv.bias") {
    return {&layer.query_bias, &layer.key_bias, &layer.value_bias};
  }
  if (name == "attention.output.weight") return {&layer.output};
  if (name == "attention.output.bias") return {&layer.output_bias};
  if (name == "attention.sinks") return {&layer.sinks};
  if (name == "attention.query_norm.weight") return {&layer.query_norm};
  if (name == "attention.key_norm.weight") return {&layer.key_norm};
  if (name == "attention_output_norm.weight") {
    return {&layer.attention_output_norm};
  }
  if (name == "mlp_norm.weight") return {&layer.mlp_norm};
  if (name == "mlp_output_norm.weight") return {&layer.mlp_output_norm};
  if (name == "mlp.gate_up.weight") return {&layer.mlp.gate, &layer.mlp.up};
  if (name == "mlp.down.weight") return {&layer.mlp.down};
  if (name == "mlp.router.weight") return {&layer.router};
  if (name == "mlp.router.bias") return {&layer.router_bias};
  if (name == "mlp.router.logit_bias") return {&layer.router_logit_bias};
  if (name == "mlp.shared.gate_up.weight") {
    return {&layer.shared.gate, &layer.shared.up};
  }
  if (name == "mlp.shared.down.weight") return {&layer.shared.down};
  Tensors experts;
  for (ReferenceExpert& expert : layer.experts) {
    if (name == "mlp.experts.gate_up.weight") {
      experts.insert(experts.end(), {&expert.gate, &expert.up});
    } else if (name == "mlp.experts.down.weight") {
      experts.push_back(&expert.down);
    } else if (name == "mlp.experts.gate_up.bias") {
      experts.insert(experts.end(), {&expert.gate_bias, &expert.up_bias});
    } else if (name == "mlp.experts.down.bias") {
      experts.push_back(&expert.down_bias);
    }
  }
  return experts;
}

// The reference's tensors that form a parameter, stacked by rows.
Tensors TensorsFor(std::string_view name, ReferenceWeights& weights) {
  if (name == "embedding.weight") return {&weights.embedding};
  if (name == "head.norm.weight") return {&weights.final_norm};
  if (name == "head.output.weight") return {&weights.head};
  size_t layer = 0;
  const size_t dot = name.find('.', 7);
  if (!absl::ConsumePrefix(&name, "layers.") || dot == name.npos ||
      !absl::SimpleAtoi(name.substr(0, dot - 7), &layer) ||
      layer >= weights.layers.size()) {
    return {};
  }
  return LayerTensors(name.substr(dot - 6), weights.layers[layer]);
}

std::span<std::byte> BytesOf(const TensorView& view) {
  return {view.data(), static_cast<size_t>(view.size_in_bytes())};
}

using Move = absl::Status (*)(TensorView part, std::vector<double>& values);

absl::Status SetPart(TensorView part, std::vector<double>& values) {
  return Convert(DType::kF64, std::as_bytes(std::span(values)), part.dtype(),
                 BytesOf(part));
}

absl::Status GetPart(TensorView part, std::vector<double>& values) {
  return Convert(part.dtype(), BytesOf(part), DType::kF64,
                 std::as_writable_bytes(std::span(values)));
}

// Moves each tensor's rows of `whole`.
absl::Status MoveParts(const std::string& name, const TensorView& whole,
                       ReferenceWeights& weights, Move move) {
  const Tensors tensors = TensorsFor(name, weights);
  const int64_t columns = whole.shape().size() == 2 ? whole.shape()[1] : 1;
  int64_t row = 0;
  for (std::vector<double>* values : tensors) {
    const int64_t rows = static_cast<int64_t>(values->size()) / columns;
    if (row + rows > whole.shape()[0]) break;
    TESSERA_ASSIGN_OR_RETURN(const TensorView part, whole.Narrow(0, row, rows));
    TESSERA_RETURN_IF_ERROR(move(part, *values));
    row += rows;
  }
  if (tensors.empty() || row != whole.shape()[0]) {
    return absl::InternalError(absl::StrCat(name, " has ", whole.shape()[0],
                                            " rows; the reference has ", row));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadReference(const std::string& name, const TensorView& value,
                           ReferenceWeights& weights) {
  return MoveParts(name, value, weights, &GetPart);
}

absl::StatusOr<std::unique_ptr<OneRank>> OneRank::Create(
    const RunOptions& options, ReferenceWeights weights) {
  std::unique_ptr<OneRank> rank(new OneRank(options.model, std::move(weights)));
  rank->sequences_ = options.micro_batch;
  TESSERA_ASSIGN_OR_RETURN(rank->whole_,
                           WholeLlama::Create(rank->ops_, options, *rank));
  TESSERA_RETURN_IF_ERROR(rank->SetWeights());
  return rank;
}

absl::Status OneRank::SetWeights() {
  for (const auto& window : whole_->windows()) {
    for (tp::Parameter* parameter : window) {
      TESSERA_RETURN_IF_ERROR(
          MoveParts(parameter->name(), parameter->value(), weights_, &SetPart));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> OneRank::Forward(std::vector<int64_t> tokens) {
  tokens_ = std::move(tokens);
  targets_.clear();
  const int64_t length = static_cast<int64_t>(masked_.size()) / sequences_;
  for (int64_t i = 0; i < static_cast<int64_t>(masked_.size()); ++i) {
    const auto target = static_cast<size_t>(i + i / length + 1);
    targets_.push_back(masked_[static_cast<size_t>(i)] ? tp::kNoTarget
                                                       : tokens_[target]);
  }
  TESSERA_ASSIGN_OR_RETURN(const double loss, whole_->Forward());
  return loss * target_factor_;
}

void OneRank::SetMasked(std::vector<bool> masked) {
  masked_ = std::move(masked);
  const auto targets = std::count(masked_.begin(), masked_.end(), false);
  target_factor_ = masked_.empty() ? 1
                   : targets == 0  ? 0
                                   : static_cast<double>(masked_.size()) /
                                        static_cast<double>(targets);
  whole_->SetTargetFactor(target_factor_);
}

absl::StatusOr<double> OneRank::Loss(std::vector<int64_t> tokens) {
  TESSERA_ASSIGN_OR_RETURN(const double loss, Forward(std::move(tokens)));
  whole_->Release();
  return loss;
}

absl::Status OneRank::Backward(bool split) {
  if (split) {
    TESSERA_RETURN_IF_ERROR(whole_->BackwardInput());
    TESSERA_RETURN_IF_ERROR(whole_->BackwardWeight());
  } else {
    TESSERA_RETURN_IF_ERROR(whole_->Backward());
  }
  return whole_->FinishGradients();
}

absl::StatusOr<ReferenceWeights> OneRank::Gradients() {
  ReferenceWeights gradients = ReferenceZeros(model_);
  for (const auto& window : whole_->windows()) {
    for (tp::Parameter* parameter : window) {
      if (!parameter->trainable()) continue;
      TESSERA_RETURN_IF_ERROR(MoveParts(
          parameter->name(), parameter->gradient(), gradients, &GetPart));
    }
  }
  return gradients;
}

}  // namespace tessera::train
