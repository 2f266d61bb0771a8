#include "tools/train/model/llama_stage.h"

#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::train {

namespace tp = tensor_parallel;

LlamaLayers::LlamaLayers(const tp::TensorGroup& tensor,
                         const tp::ContextGroup& context,
                         const LlamaOptions& options,
                         std::vector<int32_t> windows)
    : tensor_(tensor),
      context_(context),
      options_(options),
      numbers_(std::move(windows)),
      blocks_(numbers_.size()),
      windows_(numbers_.size()) {}

absl::StatusOr<std::unique_ptr<LlamaLayers>> LlamaLayers::Create(
    const tp::TensorGroup& tensor, const tp::ContextGroup& context,
    const LlamaOptions& options, std::vector<int32_t> windows) {
  TESSERA_RETURN_IF_ERROR(options.model.Validate());
  const int64_t all = WindowsOf(options.model);
  for (size_t i = 0; i < windows.size(); ++i) {
    const bool ascends = i == 0 || windows[i - 1] < windows[i];
    if (windows[i] >= 0 && windows[i] < all && ascends) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("window ", windows[i], " of a model that has ", all,
                     "; give windows 0 to ", all - 1, " in ascending order"));
  }
  std::unique_ptr<LlamaLayers> layers(
      new LlamaLayers(tensor, context, options, std::move(windows)));
  const int64_t positions = context.layout.SizeOf(context.group.rank());
  TESSERA_ASSIGN_OR_RETURN(
      layers->tokens_,
      tp::Partition::Balanced(options.sequences * positions, tensor.size()));
  for (size_t window = 0; window < layers->numbers_.size(); ++window) {
    TESSERA_RETURN_IF_ERROR(
        layers->IsEmbedding(window) ? layers->CreateEmbedding()
        : layers->IsHead(window)    ? layers->CreateHead()
                                    : layers->CreateBlock(window));
  }
  return layers;
}

absl::Status LlamaLayers::CreateEmbedding() {
  TESSERA_ASSIGN_OR_RETURN(
      auto embedding,
      tp::VocabularyParallelEmbedding::Create(
          tensor_, {.vocabulary = options_.model.vocabulary,
                    .width = options_.model.hidden,
                    .dtype = options_.dtype,
                    .sequence_parallel = options_.sequence_parallel}));
  embedding_.emplace(std::move(embedding));
  embedding_->AppendParameters("embedding", windows_.front());
  return absl::OkStatus();
}

absl::Status LlamaLayers::CreateBlock(size_t window) {
  const model_files::ModelConfig& model = options_.model;
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
                         .sequence_parallel = options_.sequence_parallel,
                         .overlap_chunks = options_.overlap_chunks},
           .hidden = model.intermediate,
           .norm_epsilon = model.norm_epsilon,
           .recompute = options_.recompute,
           .dropout = {.probability = options_.dropout,
                       .seed = options_.seed,
                       .layer = numbers_[window] - 1},
           .borrows_tensors = true}));
  blocks_[window] = std::make_unique<tp::TransformerBlock>(std::move(block));
  blocks_[window]->AppendParameters(
      absl::StrCat("layers.", numbers_[window] - 1), windows_[window]);
  return absl::OkStatus();
}

absl::Status LlamaLayers::CreateHead() {
  const model_files::ModelConfig& model = options_.model;
  const bool shares =
      model.tied_embeddings && embedding_ && options_.shares_table;
  TESSERA_ASSIGN_OR_RETURN(
      auto head,
      tp::OutputHead::Create(tensor_,
                             {.width = model.hidden,
                              .vocabulary = model.vocabulary,
                              .norm_epsilon = model.norm_epsilon,
                              .dtype = options_.dtype,
                              .sequence_parallel = options_.sequence_parallel,
                              .recompute = options_.recompute,
                              .borrows_tensors = true},
                             shares ? &embedding_->table() : nullptr));
  head_.emplace(std::move(head));
  head_->AppendParameters("head", windows_.back());
  if (shares) windows_.back().push_back(&embedding_->table());
  return absl::OkStatus();
}

const tp::Parameter* LlamaLayers::copied_table() {
  if (!options_.model.tied_embeddings || !head_) return nullptr;
  const bool shares = embedding_ && options_.shares_table;
  return shares ? nullptr : &head_->table();
}

tp::Parameter* LlamaLayers::TiedTable(size_t window) {
  if (!options_.model.tied_embeddings) return nullptr;
  if (IsEmbedding(window)) return &embedding_->table();
  return IsHead(window) ? &head_->table() : nullptr;
}

absl::Status LlamaLayers::FinishGradients(size_t window) {
  if (blocks_[window] != nullptr) return blocks_[window]->FinishGradients();
  return IsHead(window) ? head_->FinishGradients() : absl::OkStatus();
}

namespace tp = tensor_parallel;

namespace {

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Reusable storage of the activations of micro-batches in flight.
template <typename Flight>
class Flights {
 public:
  template <typename... Arguments>
  absl::StatusOr<Flight*> Start(int32_t microbatch, Arguments&... arguments) {
    std::unique_ptr<Flight>& flight = flights_[microbatch];
    if (flight != nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("micro-batch ", microbatch, " is in flight already"));
    }
    if (free_.empty()) {
      flight = std::make_unique<Flight>(arguments...);
    } else {
      flight = std::move(free_.back());
      free_.pop_back();
    }
    return flight.get();
  }

  absl::StatusOr<Flight*> Find(int32_t microbatch) {
    const auto found = flights_.find(microbatch);
    if (found != flights_.end()) return found->second.get();
    return absl::FailedPreconditionError(absl::StrCat(
        "a backward of micro-batch ", microbatch, " before its forward"));
  }

  // Null if there is none.
  Flight* Release(int32_t microbatch) {
    const auto found = flights_.find(microbatch);
    if (found == flights_.end()) return nullptr;
    free_.push_back(std::move(found->second));
    flights_.erase(found);
    return free_.back().get();
  }

 private:
  std::map<int32_t, std::unique_ptr<Flight>> flights_;
  std::vector<std::unique_ptr<Flight>> free_;
};

class LlamaStage : public pipeline::Stage {
 public:
  LlamaStage(LlamaLayers& layers, size_t window, LlamaPasses& passes)
      : layers_(layers), window_(window), passes_(passes) {}

  absl::StatusOr<pipeline::TensorSpec> OutputSpec(
      const pipeline::TensorSpec*) override {
    return BoundaryOf(layers_);
  }

  absl::Status Unshard() override {
    return passes_.weights.StartGather(window_);
  }
  absl::Status Reshard() override { return passes_.weights.Release(window_); }
  absl::Status ReduceGradient() override {
    TESSERA_RETURN_IF_ERROR(layers_.FinishGradients(window_));
    return passes_.weights.Reduce(window_);
  }

  absl::StatusOr<std::vector<TensorView>> Gradients() override {
    std::vector<TensorView> gradients;
    for (const tp::Parameter* parameter : layers_.windows()[window_]) {
      TESSERA_ASSIGN_OR_RETURN(const TensorView own,
                               passes_.weights.OwnGradient(*parameter));
      gradients.push_back(own);
    }
    return gradients;
  }

  // Only "embedding", the table that embedding and head share.
  absl::StatusOr<TensorView> TiedGradient(std::string_view name) override {
    const tp::Parameter* const table = layers_.TiedTable(window_);
    if (name != "embedding" || table == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("this stage has no tied weights \"", name, "\""));
    }
    return passes_.weights.OwnGradient(*table);
  }
  absl::Status AddGradient(ConstTensorView gradient, TensorView sum) override {
    return layers_.tensor().ops().Add(gradient, sum);
  }
  absl::Status CopyGradient(ConstTensorView gradient,
                            TensorView copy) override {
    return layers_.tensor().ops().Copy(gradient, copy);
  }

  bool KeepsInput(int32_t microbatch) const override {
    return passes_.store != nullptr &&
           passes_.store->IsAway({window_, microbatch});
  }

 protected:
  // After a forward: offloads saved activations if there is a store.
  template <typename Flight>
  absl::Status SendAway(const pipeline::ForwardPass& pass, Flight& flight) {
    const ActivationPlace place = {window_, pass.microbatch};
    if (!pass.training || passes_.store == nullptr ||
        !passes_.store->Sends(place)) {
      return absl::OkStatus();
    }
    return passes_.store->Put(place, flight.Kept());
  }
  // Before a backward: restores offloaded activations.
  template <typename Flight>
  absl::Status BringBack(const pipeline::BackwardPass& pass, Flight& flight) {
    if (!KeepsInput(pass.microbatch)) return absl::OkStatus();
    return passes_.store->Take({window_, pass.microbatch}, flight.Kept());
  }

  absl::Status BeginForward() {
    if (passes_.first_pass_ns == LlamaPasses::kNever) {
      passes_.first_pass_ns = Now();
    }
    return passes_.weights.UseValues(window_);
  }

  // The input tokens of the rank's positions, sequence by sequence, or the
  // targets.
  absl::Status ReadTokens(int32_t microbatch, int64_t shift,
                          std::vector<int64_t>& tokens) {
    const LlamaOptions& options = layers_.options();
    TESSERA_ASSIGN_OR_RETURN(const std::span<const int64_t> all,
                             passes_.tokens.Tokens(microbatch));
    const int64_t stride = options.length + 1;
    if (static_cast<int64_t>(all.size()) != options.sequences * stride) {
      return absl::InvalidArgumentError(absl::StrCat(
          "micro-batch ", microbatch, " has ", all.size(), " tokens; ",
          options.sequences, " sequences of ", stride, " are needed"));
    }
    const tp::ContextGroup& context = layers_.context();
    const std::vector<int64_t> positions =
        context.layout.PositionsOf(context.group.rank());
    tokens.clear();
    for (int64_t s = 0; s < options.sequences; ++s) {
      for (const int64_t position : positions) {
        tokens.push_back(
            all[static_cast<size_t>(s * stride + position + shift)]);
      }
    }
    return absl::OkStatus();
  }

  LlamaLayers& layers_;
  const size_t window_;
  LlamaPasses& passes_;
};

class EmbeddingStage final : public LlamaStage {
 public:
  using LlamaStage::LlamaStage;

  absl::Status Forward(const pipeline::ForwardPass& pass) override {
    TESSERA_RETURN_IF_ERROR(BeginForward());
    TESSERA_ASSIGN_OR_RETURN(Ids* const ids, flights_.Start(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(ReadTokens(pass.microbatch, 0, *ids));
    return layers_.embedding()->Forward(layers_.tokens(), *ids, *pass.output);
  }
  absl::Status BackwardInput(const pipeline::BackwardPass&) override {
    return absl::OkStatus();
  }
  absl::Status BackwardWeight(const pipeline::BackwardPass& pass) override {
    TESSERA_ASSIGN_OR_RETURN(Ids* const ids, flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseGradients(window_));
    return layers_.embedding()->BackwardWeight(layers_.tokens(), *ids,
                                               *pass.output_gradient);
  }
  void Release(int32_t microbatch) override { flights_.Release(microbatch); }

 private:
  using Ids = std::vector<int64_t>;
  Flights<Ids> flights_;
};

class BlockStage final : public LlamaStage {
 public:
  using LlamaStage::LlamaStage;

  absl::Status Forward(const pipeline::ForwardPass& pass) override {
    TESSERA_RETURN_IF_ERROR(BeginForward());
    TESSERA_ASSIGN_OR_RETURN(tp::BlockActivations* const flight,
                             flights_.Start(pass.microbatch, passes_.pool));
    const std::optional<int64_t> first_sequence =
        pass.training
            ? std::optional(passes_.tokens.FirstSequence(pass.microbatch))
            : std::nullopt;
    TESSERA_RETURN_IF_ERROR(block().Forward(layers_.options().sequences,
                                            *pass.input, *pass.output, *flight,
                                            first_sequence));
    return SendAway(pass, *flight);
  }
  absl::Status BackwardInput(const pipeline::BackwardPass& pass) override {
    TESSERA_ASSIGN_OR_RETURN(tp::BlockActivations* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(BringBack(pass, *flight));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseValues(window_));
    return block().BackwardInput(*pass.output_gradient, *pass.input_gradient,
                                 *flight);
  }
  absl::Status BackwardWeight(const pipeline::BackwardPass& pass) override {
    TESSERA_ASSIGN_OR_RETURN(tp::BlockActivations* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseGradients(window_));
    return block().BackwardWeight(*flight);
  }
  absl::Status Backward(const pipeline::BackwardPass& pass) override {
    TESSERA_ASSIGN_OR_RETURN(tp::BlockActivations* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(BringBack(pass, *flight));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseValues(window_));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseGradients(window_));
    return block().Backward(*pass.output_gradient, *pass.input_gradient,
                            *flight);
  }
  void Release(int32_t microbatch) override {
    if (auto* const flight = flights_.Release(microbatch)) flight->Clear();
  }

 private:
  tp::TransformerBlock& block() { return *layers_.block(window_); }

  Flights<tp::BlockActivations> flights_;
};

class HeadStage final : public LlamaStage {
 public:
  using LlamaStage::LlamaStage;

  absl::Status Forward(const pipeline::ForwardPass& pass) override {
    TESSERA_RETURN_IF_ERROR(BeginForward());
    TESSERA_ASSIGN_OR_RETURN(tp::HeadActivations* const flight,
                             flights_.Start(pass.microbatch, passes_.pool));
    TESSERA_RETURN_IF_ERROR(ReadTokens(pass.microbatch, 1, targets_));
    losses_.resize(targets_.size());
    TESSERA_RETURN_IF_ERROR(head().Forward(layers_.tokens(), *pass.input,
                                           targets_, losses_, *flight));
    if (pass.loss != nullptr) {
      *pass.loss = std::accumulate(losses_.begin(), losses_.end(), 0.0) /
                   tokens_of_microbatch();
    }
    return SendAway(pass, *flight);
  }
  absl::Status BackwardInput(const pipeline::BackwardPass& pass) override {
    TESSERA_ASSIGN_OR_RETURN(tp::HeadActivations* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(BringBack(pass, *flight));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseValues(window_));
    return head().BackwardInput(ScalesOf(pass), *pass.input_gradient, *flight);
  }
  absl::Status BackwardWeight(const pipeline::BackwardPass& pass) override {
    TESSERA_ASSIGN_OR_RETURN(tp::HeadActivations* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseGradients(window_));
    return head().BackwardWeight(*flight);
  }
  absl::Status Backward(const pipeline::BackwardPass& pass) override {
    TESSERA_ASSIGN_OR_RETURN(tp::HeadActivations* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(BringBack(pass, *flight));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseValues(window_));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseGradients(window_));
    return head().Backward(ScalesOf(pass), *pass.input_gradient, *flight);
  }
  void Release(int32_t microbatch) override {
    if (auto* const flight = flights_.Release(microbatch)) flight->Clear();
  }

 private:
  tp::OutputHead& head() { return *layers_.head(); }
  double tokens_of_microbatch() const {
    return static_cast<double>(layers_.options().sequences *
                               layers_.options().length);
  }
  std::span<const double> ScalesOf(const pipeline::BackwardPass& pass) {
    scales_.assign(
        static_cast<size_t>(layers_.tokens().size()),
        pass.loss_scale * passes_.loss_factor / tokens_of_microbatch());
    return scales_;
  }

  Flights<tp::HeadActivations> flights_;
  std::vector<int64_t> targets_;
  std::vector<double> losses_;
  std::vector<double> scales_;
};

}  // namespace

std::unique_ptr<pipeline::Stage> MakeLlamaStage(LlamaLayers& layers,
                                                size_t window,
                                                LlamaPasses& passes) {
  if (layers.IsEmbedding(window)) {
    return std::make_unique<EmbeddingStage>(layers, window, passes);
  }
  if (layers.IsHead(window)) {
    return std::make_unique<HeadStage>(layers, window, passes);
  }
  return std::make_unique<BlockStage>(layers, window, passes);
}

pipeline::TensorSpec BoundaryOf(const LlamaLayers& layers) {
  const LlamaOptions& options = layers.options();
  const tp::Partition& tokens = layers.tokens();
  const int64_t rows = options.sequence_parallel
                           ? tokens.SizeOf(layers.tensor().rank())
                           : tokens.size();
  return {options.dtype, {rows, options.model.hidden}};
}

}  // namespace tessera::train
