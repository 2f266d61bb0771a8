#include "tools/train/model/llama_stage.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::train {

namespace tp = tensor_parallel;

namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

LlamaStage::Flight::Flight(tp::TensorPool& pool, size_t layer_count)
    : head(pool), hidden(pool) {
  for (size_t i = 0; i < layer_count; ++i) layers.emplace_back(pool);
}

LlamaStage::LlamaStage(const tp::TensorGroup& tensor,
                       const tp::ContextGroup& context,
                       const LlamaStageOptions& options, TokenSource& tokens,
                       WeightAccess& weights)
    : tensor_(tensor),
      context_(context),
      options_(options),
      token_source_(tokens),
      weights_(weights),
      pool_(tensor.memory()) {}

absl::StatusOr<std::unique_ptr<LlamaStage>> LlamaStage::Create(
    const tp::TensorGroup& tensor, const tp::ContextGroup& context,
    const LlamaStageOptions& options, TokenSource& tokens,
    WeightAccess& weights) {
  TESSERA_RETURN_IF_ERROR(options.model.Validate());
  std::unique_ptr<LlamaStage> stage(
      new LlamaStage(tensor, context, options, tokens, weights));
  const int64_t positions = context.layout.SizeOf(context.group.rank());
  TESSERA_ASSIGN_OR_RETURN(
      stage->tokens_,
      tp::Partition::Balanced(options.sequences * positions, tensor.size()));
  TESSERA_RETURN_IF_ERROR(stage->CreateLayers());
  TESSERA_RETURN_IF_ERROR(stage->CollectParameters());
  return stage;
}

absl::Status LlamaStage::CreateLayers() {
  const model_files::ModelConfig& model = options_.model;
  if (options_.is_first) {
    TESSERA_ASSIGN_OR_RETURN(
        auto embedding,
        tp::VocabularyParallelEmbedding::Create(
            tensor_, {.vocabulary = model.vocabulary,
                      .width = model.hidden,
                      .dtype = options_.dtype,
                      .sequence_parallel = options_.sequence_parallel}));
    embedding_.emplace(std::move(embedding));
  }
  for (int64_t i = 0; i < options_.layers; ++i) {
    TESSERA_ASSIGN_OR_RETURN(
        tp::TransformerBlock block,
        tp::TransformerBlock::Create(
            tensor_, context_,
            {.attention = {.width = model.hidden,
                           .heads = model.heads,
                           .kv_heads = model.kv_heads,
                           .head_size = model.head_size,
                           .rotary_base = model.rope_theta,
                           .dtype = options_.dtype,
                           .sequence_parallel = options_.sequence_parallel},
             .hidden = model.intermediate,
             .norm_epsilon = model.norm_epsilon,
             .recompute = options_.recompute}));
    layers_.push_back(std::make_unique<tp::TransformerBlock>(std::move(block)));
  }
  if (!options_.is_last) return absl::OkStatus();
  const bool is_tied_here = model.tied_embeddings && embedding_.has_value();
  TESSERA_ASSIGN_OR_RETURN(
      auto head,
      tp::OutputHead::Create(tensor_,
                             {.width = model.hidden,
                              .vocabulary = model.vocabulary,
                              .norm_epsilon = model.norm_epsilon,
                              .dtype = options_.dtype,
                              .sequence_parallel = options_.sequence_parallel,
                              .recompute = options_.recompute},
                             is_tied_here ? &embedding_->table() : nullptr));
  head_.emplace(std::move(head));
  return absl::OkStatus();
}

absl::Status LlamaStage::CollectParameters() {
  if (embedding_) {
    embedding_->AppendParameters("embedding", windows_.emplace_back());
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i]->AppendParameters(
        absl::StrCat("layers.", options_.first_layer + static_cast<int64_t>(i)),
        windows_.emplace_back());
  }
  if (head_) {
    head_->AppendParameters("head", windows_.emplace_back());
    if (options_.model.tied_embeddings && embedding_) {
      windows_.back().push_back(&embedding_->table());
    }
  }
  return absl::OkStatus();
}

void LlamaStage::BeginStep() {
  first_pass_ns_ = kNever;
  pool_.ResetPeak();
}

absl::Status LlamaStage::FinishGradients() {
  for (auto& layer : layers_) {
    TESSERA_RETURN_IF_ERROR(layer->FinishGradients());
  }
  return head_ ? head_->FinishGradients() : absl::OkStatus();
}

absl::StatusOr<pipeline::TensorSpec> LlamaStage::OutputSpec(
    const pipeline::TensorSpec*) {
  return pipeline::TensorSpec{
      options_.dtype,
      {options_.sequence_parallel ? local_tokens() : tokens_.size(),
       options_.model.hidden}};
}

absl::StatusOr<LlamaStage::Flight*> LlamaStage::StartFlight(
    int32_t microbatch) {
  std::unique_ptr<Flight>& flight = flights_[microbatch];
  if (flight != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("micro-batch ", microbatch, " is in flight already"));
  }
  if (free_flights_.empty()) {
    flight = std::make_unique<Flight>(pool_, layers_.size());
  } else {
    flight = std::move(free_flights_.back());
    free_flights_.pop_back();
  }
  return flight.get();
}

absl::StatusOr<LlamaStage::Flight*> LlamaStage::FindFlight(int32_t microbatch) {
  const auto found = flights_.find(microbatch);
  if (found == flights_.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a backward of micro-batch ", microbatch, " before its forward"));
  }
  return found->second.get();
}

// Of the positions that this rank has, sequence by sequence.
absl::Status LlamaStage::ReadTokens(int32_t microbatch, Flight& flight) {
  if (!embedding_ && !head_) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::span<const int64_t> tokens,
                           token_source_.Tokens(microbatch));
  const int64_t stride = options_.length + 1;
  if (static_cast<int64_t>(tokens.size()) != options_.sequences * stride) {
    return absl::InvalidArgumentError(absl::StrCat(
        "micro-batch ", microbatch, " has ", tokens.size(), " tokens; ",
        options_.sequences, " sequences of ", stride, " are needed"));
  }
  const std::vector<int64_t> positions =
      context_.layout.PositionsOf(context_.group.rank());
  flight.inputs.clear();
  flight.targets.clear();
  for (int64_t s = 0; s < options_.sequences; ++s) {
    for (int64_t position : positions) {
      const auto at = static_cast<size_t>(s * stride + position);
      flight.inputs.push_back(tokens[at]);
      flight.targets.push_back(tokens[at + 1]);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> LlamaStage::WorkTensor(const TensorView* given,
                                                  Flight& flight) {
  if (given != nullptr) return *given;
  TESSERA_ASSIGN_OR_RETURN(const pipeline::TensorSpec spec,
                           OutputSpec(nullptr));
  return flight.hidden.Reserve(spec.dtype, spec.shape);
}

absl::Status LlamaStage::WithWeights(const Parameters& window,
                                     absl::FunctionRef<absl::Status()> run) {
  TESSERA_RETURN_IF_ERROR(weights_.Use(window));
  TESSERA_RETURN_IF_ERROR(run());
  return weights_.Done(window);
}

absl::Status LlamaStage::Forward(const pipeline::ForwardPass& pass) {
  if (first_pass_ns_ == kNever) first_pass_ns_ = Now();
  TESSERA_ASSIGN_OR_RETURN(Flight* const flight, StartFlight(pass.microbatch));
  TESSERA_RETURN_IF_ERROR(ReadTokens(pass.microbatch, *flight));
  TESSERA_ASSIGN_OR_RETURN(const TensorView x,
                           WorkTensor(pass.output, *flight));
  TESSERA_RETURN_IF_ERROR(ForwardLayers(pass, x, *flight));
  if (head_) TESSERA_RETURN_IF_ERROR(ForwardHead(pass, x, *flight));
  flight->hidden.Release();
  return absl::OkStatus();
}

absl::Status LlamaStage::ForwardLayers(const pipeline::ForwardPass& pass,
                                       TensorView x, Flight& flight) {
  if (embedding_) {
    TESSERA_RETURN_IF_ERROR(WithWeights(windows_.front(), [&] {
      return embedding_->Forward(tokens_, flight.inputs, x);
    }));
  } else if (layers_.empty()) {
    TESSERA_RETURN_IF_ERROR(tensor_.ops().Copy(*pass.input, x));
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const ConstTensorView from =
        i == 0 && !embedding_ ? *pass.input : ConstTensorView(x);
    TESSERA_RETURN_IF_ERROR(WithWeights(WindowOf(i), [&] {
      return layers_[i]->Forward(options_.sequences, from, x, flight.layers[i]);
    }));
  }
  return absl::OkStatus();
}

absl::Status LlamaStage::ForwardHead(const pipeline::ForwardPass& pass,
                                     TensorView x, Flight& flight) {
  std::vector<double> losses(flight.targets.size());
  TESSERA_RETURN_IF_ERROR(WithWeights(windows_.back(), [&] {
    return head_->Forward(tokens_, x, flight.targets, losses, flight.head);
  }));
  if (pass.loss != nullptr) {
    *pass.loss = std::accumulate(losses.begin(), losses.end(), 0.0) /
                 static_cast<double>(options_.sequences * options_.length);
  }
  return absl::OkStatus();
}

absl::Status LlamaStage::BackwardHead(bool with_weights, TensorView x_gradient,
                                      Flight& flight) {
  const std::vector<double> scales(
      flight.targets.size(),
      loss_factor_ / static_cast<double>(options_.sequences * options_.length));
  return WithWeights(windows_.back(), [&] {
    return with_weights ? head_->Backward(scales, x_gradient, flight.head)
                        : head_->BackwardInput(scales, x_gradient, flight.head);
  });
}

// The embedding's weights have their gradients with the others' inputs: there
// is nothing to compute but sums of rows.
absl::Status LlamaStage::RunBackward(bool with_weights,
                                     const pipeline::BackwardPass& pass) {
  TESSERA_ASSIGN_OR_RETURN(Flight* const flight, FindFlight(pass.microbatch));
  TESSERA_ASSIGN_OR_RETURN(const TensorView x_gradient,
                           WorkTensor(pass.input_gradient, *flight));
  ConstTensorView y_gradient = x_gradient;
  if (head_) {
    TESSERA_RETURN_IF_ERROR(BackwardHead(with_weights, x_gradient, *flight));
  } else {
    y_gradient = *pass.output_gradient;
  }
  for (size_t i = layers_.size(); i-- > 0; y_gradient = x_gradient) {
    TESSERA_RETURN_IF_ERROR(WithWeights(WindowOf(i), [&] {
      return with_weights ? layers_[i]->Backward(y_gradient, x_gradient,
                                                 flight->layers[i])
                          : layers_[i]->BackwardInput(y_gradient, x_gradient,
                                                      flight->layers[i]);
    }));
  }
  if (embedding_) {
    TESSERA_RETURN_IF_ERROR(WithWeights(windows_.front(), [&] {
      return embedding_->BackwardWeight(tokens_, flight->inputs, y_gradient);
    }));
  } else if (layers_.empty() && !head_) {
    TESSERA_RETURN_IF_ERROR(tensor_.ops().Copy(y_gradient, x_gradient));
  }
  flight->hidden.Release();
  return absl::OkStatus();
}

absl::Status LlamaStage::BackwardWeight(const pipeline::BackwardPass& pass) {
  TESSERA_ASSIGN_OR_RETURN(Flight* const flight, FindFlight(pass.microbatch));
  if (head_) {
    TESSERA_RETURN_IF_ERROR(WithWeights(
        windows_.back(), [&] { return head_->BackwardWeight(flight->head); }));
  }
  for (size_t i = layers_.size(); i-- > 0;) {
    TESSERA_RETURN_IF_ERROR(WithWeights(WindowOf(i), [&] {
      return layers_[i]->BackwardWeight(flight->layers[i]);
    }));
  }
  return absl::OkStatus();
}

absl::Status LlamaStage::BackwardInput(const pipeline::BackwardPass& pass) {
  return RunBackward(/*with_weights=*/false, pass);
}

absl::Status LlamaStage::Backward(const pipeline::BackwardPass& pass) {
  return RunBackward(/*with_weights=*/true, pass);
}

void LlamaStage::Release(int32_t microbatch) {
  const auto found = flights_.find(microbatch);
  if (found == flights_.end()) return;
  for (tp::BlockActivations& layer : found->second->layers) layer.Clear();
  found->second->head.Clear();
  found->second->hidden.Release();
  free_flights_.push_back(std::move(found->second));
  flights_.erase(found);
}

const tp::Parameter* LlamaStage::copied_table() {
  const bool has_copy = options_.model.tied_embeddings && head_ && !embedding_;
  return has_copy ? &head_->table() : nullptr;
}

absl::StatusOr<TensorView> LlamaStage::TiedGradient(std::string_view name) {
  if (name != "embedding" || !options_.model.tied_embeddings ||
      (!embedding_ && !head_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("this stage has no tied weights \"", name, "\""));
  }
  tp::Parameter& table = embedding_ ? embedding_->table() : head_->table();
  TESSERA_RETURN_IF_ERROR(table.CheckGradient());
  return table.gradient();
}

LlamaStage::Parameters LlamaStage::ParametersWithGradients() {
  Parameters parameters;
  for (const Parameters& window : windows_) {
    for (tp::Parameter* parameter : window) {
      // A tied table is in two windows.
      const bool is_again = &window == &windows_.back() && embedding_ &&
                            windows_.size() > 1 &&
                            parameter == &embedding_->table();
      if (!is_again && parameter->has_gradient()) {
        parameters.push_back(parameter);
      }
    }
  }
  return parameters;
}

absl::Status LlamaStage::ScaleGradients(double factor) {
  for (tp::Parameter* parameter : ParametersWithGradients()) {
    TESSERA_RETURN_IF_ERROR(tensor_.ops().Scale(factor, parameter->gradient()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorView>> LlamaStage::Gradients() {
  std::vector<TensorView> gradients;
  for (const tp::Parameter* parameter : ParametersWithGradients()) {
    gradients.push_back(parameter->gradient());
  }
  return gradients;
}

}  // namespace tessera::train
