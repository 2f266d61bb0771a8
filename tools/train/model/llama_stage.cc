#include "tools/train/model/llama_stage.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/lora.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/train/model/mixture_options.h"
#include "tools/train/watch/live_place.h"

namespace tessera::train {

namespace tp = tensor_parallel;

tp::TransformerBlockOptions BlockOptionsOf(const RunOptions& options,
                                           int64_t layer) {
  const model_files::ModelConfig& model = options.model;
  const model_files::ArchitectureTraits& traits = model.traits();
  tp::TransformerBlockOptions block;
  block.attention = {.width = model.hidden,
                     .heads = model.heads,
                     .kv_heads = model.kv_heads,
                     .head_size = model.head_size,
                     .qkv_bias = model.qkv_bias,
                     .output_bias = model.output_bias,
                     .qk_norm = traits.qk_norm,
                     .shared_qk_norm = traits.shared_qk_norm,
                     .norm_epsilon = model.norm_epsilon,
                     .sinks = traits.sinks,
                     .scale = model.ScoreScale(),
                     .cap = model.attention_cap,
                     .window = model.WindowOf(layer),
                     .dtype = options.dtype};
  if (model.IsLatent()) {
    // The norms of latent vectors have the default epsilon in transformers.
    block.attention.latent = {.query_rank = model.latent.query_rank,
                              .kv_rank = model.latent.kv_rank,
                              .nope = model.latent.nope,
                              .rope = model.latent.rope,
                              .value = model.latent.value,
                              .interleaved = model.latent.interleaved};
  }
  block.attention.rotary.reset();
  if (const auto* const rotary = model.RotaryOf(layer)) {
    block.attention.rotary = *rotary;
  }
  block.input_norms = traits.input_norms;
  block.output_norms = traits.output_norms;
  if (options.lora_attention) block.attention.lora = options.lora;
  if (options.lora_mlp) block.mlp_lora = options.lora;
  block.hidden = model.intermediate;
  block.glu = traits.glu;
  block.moe = MixtureOptions(model, layer);
  block.moe.balance = options.balance.value_or(block.moe.balance);
  block.moe.z_loss = options.router_z_loss;
  block.moe.capacity = options.expert_capacity;
  block.norm_epsilon = model.norm_epsilon;
  block.recompute = options.recompute;
  block.dropout = {
      .probability = options.dropout, .seed = options.seed, .layer = layer};
  return block;
}

namespace {

// The context group for blocks that share the tables of rotary positions.
tp::ContextGroup SharingTables(const tp::TensorGroup& tensor,
                               tp::ContextGroup context) {
  context.rotary = std::make_shared<tp::RotaryTables>(
      tensor, context.layout.PositionsOf(context.group.rank()));
  return context;
}

}  // namespace

LlamaLayers::LlamaLayers(const tp::TensorGroup& tensor,
                         const tp::ContextGroup& context,
                         const std::optional<tp::TensorGroup>& experts,
                         const RunOptions& options,
                         std::vector<int32_t> windows, bool shares_table)
    : tensor_(tensor),
      context_(SharingTables(tensor, context)),
      experts_(experts),
      options_(options),
      numbers_(std::move(windows)),
      shares_table_(shares_table),
      blocks_(numbers_.size()),
      windows_(numbers_.size()) {}

absl::StatusOr<std::unique_ptr<LlamaLayers>> LlamaLayers::Create(
    const tp::TensorGroup& tensor, const tp::ContextGroup& context,
    const RunOptions& options, std::vector<int32_t> windows,
    const std::optional<tp::TensorGroup>& experts, bool shares_table) {
  TESSERA_RETURN_IF_ERROR(options.model.Validate());
  const int64_t all = WindowsOf(options.model);
  for (size_t i = 0; i < windows.size(); ++i) {
    const bool ascends = i == 0 || windows[i - 1] < windows[i];
    if (windows[i] >= 0 && windows[i] < all && ascends) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("window ", windows[i], " of a model that has ", all,
                     "; give windows 0 to ", all - 1, " in ascending order"));
  }
  std::unique_ptr<LlamaLayers> layers(new LlamaLayers(
      tensor, context, experts, options, std::move(windows), shares_table));
  const int64_t positions = context.layout.SizeOf(context.group.rank());
  TESSERA_ASSIGN_OR_RETURN(
      layers->tokens_,
      tp::Partition::Balanced(options.micro_batch * positions, tensor.size()));
  if (options.fp8) TESSERA_RETURN_IF_ERROR(layers->CreateFp8());
  for (size_t window = 0; window < layers->numbers_.size(); ++window) {
    TESSERA_RETURN_IF_ERROR(
        layers->IsEmbedding(window) ? layers->CreateEmbedding()
        : layers->IsHead(window)    ? layers->CreateHead()
                                    : layers->CreateBlock(window));
  }
  if (options.lora.rank > 0) layers->FreezeAllButAdapters();
  return layers;
}

absl::Status LlamaLayers::CreateFp8() {
  if (options_.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("products in fp8 with weights of ",
                     DTypeName(options_.dtype), "; give bf16"));
  }
  int64_t layers = 0;
  for (const Fp8Layers& some : fp8_layers()) layers += some.count;
  TESSERA_ASSIGN_OR_RETURN(fp8_,
                           tp::Fp8Scaling::Create(tensor_, {.layers = layers}));
  return absl::OkStatus();
}

// Two linear layers per attention, or four if it is latent, and two per MLP
// that is not a mixture.
std::vector<LlamaLayers::Fp8Layers> LlamaLayers::fp8_layers() const {
  const int64_t attention = options_.model.IsLatent() ? 4 : 2;
  std::vector<Fp8Layers> layers;
  int64_t first = 0;
  for (size_t window = 0; window < numbers_.size(); ++window) {
    if (IsEmbedding(window) || IsHead(window)) continue;
    const int64_t layer = numbers_[window] - 1;
    const int64_t mlp = options_.model.IsMixture(layer) ? 0 : 2;
    layers.push_back({layer, first, attention + mlp});
    first += attention + mlp;
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
                    .scale = options_.model.EmbeddingScale(options_.dtype)}));
  embedding_.emplace(std::move(embedding));
  embedding_->AppendParameters("embedding", windows_.front());
  return absl::OkStatus();
}

void LlamaLayers::FreezeAllButAdapters() {
  for (const ParameterWindow& window : windows_) {
    for (tp::Parameter* parameter : window) {
      if (!tp::IsLoraFactor(parameter->name())) parameter->Freeze();
    }
  }
}

absl::Status LlamaLayers::CreateBlock(size_t window) {
  const int64_t layer = numbers_[window] - 1;
  tp::TransformerBlockOptions block = BlockOptionsOf(options_, layer);
  block.attention.fp8 = fp8_;
  block.borrows_tensors = true;
  // On the CPU the host knows the routing, and zeros would cost time.
  block.moe.padded = block.moe.capacity > 0 && !tensor_.queue().is_immediate();
  TESSERA_ASSIGN_OR_RETURN(
      tp::TransformerBlock made,
      tp::TransformerBlock::Create(tensor_, context_, block, experts_));
  blocks_[window] = std::make_unique<tp::TransformerBlock>(std::move(made));
  blocks_[window]->AppendParameters(absl::StrCat("layers.", layer),
                                    windows_[window]);
  return absl::OkStatus();
}

absl::Status LlamaLayers::CreateHead() {
  const model_files::ModelConfig& model = options_.model;
  const bool shares = model.tied_embeddings && embedding_ && shares_table_;
  TESSERA_ASSIGN_OR_RETURN(
      auto head, tp::OutputHead::Create(
                     tensor_,
                     {.width = model.hidden,
                      .vocabulary = model.vocabulary,
                      .norm_epsilon = model.norm_epsilon,
                      .cap = model.final_cap,
                      .dtype = options_.dtype,
                      .recompute = options_.recompute,
                      .terms = {.label_smoothing = options_.label_smoothing,
                                .z_loss = options_.z_loss},
                      .borrows_tensors = true},
                     shares ? &embedding_->table() : nullptr));
  head_.emplace(std::move(head));
  head_->AppendParameters("head", windows_.back());
  if (shares) windows_.back().push_back(&embedding_->table());
  return absl::OkStatus();
}

const tp::Parameter* LlamaLayers::copied_table() {
  if (!options_.model.tied_embeddings || !head_) return nullptr;
  const bool shares = embedding_ && shares_table_;
  return shares ? nullptr : &head_->table();
}

tp::Parameter* LlamaLayers::TiedTable(size_t window) {
  if (!options_.model.tied_embeddings || options_.lora.rank > 0) {
    return nullptr;
  }
  if (IsEmbedding(window)) return &embedding_->table();
  return IsHead(window) ? &head_->table() : nullptr;
}

absl::Status LlamaLayers::FinishGradients(size_t window) {
  if (blocks_[window] != nullptr) return blocks_[window]->FinishGradients();
  return IsHead(window) ? head_->FinishGradients() : absl::OkStatus();
}

std::vector<int64_t> FirstPositions(std::span<const int64_t> tokens,
                                    int64_t sequences, int64_t length,
                                    int64_t document_end, int64_t window) {
  std::vector<int64_t> first;
  first.reserve(static_cast<size_t>(sequences * length));
  for (int64_t s = 0; s < sequences; ++s) {
    int64_t begin = 0;
    for (int64_t i = 0; i < length; ++i) {
      const int64_t in_window = window == 0 ? 0 : i + 1 - window;
      first.push_back(std::max(begin, in_window));
      if (tokens[static_cast<size_t>(s * (length + 1) + i)] == document_end) {
        begin = i + 1;
      }
    }
  }
  return first;
}

absl::StatusOr<std::optional<ConstTensorView>> DocumentMasks::Of(
    LlamaLayers& layers, size_t window, int32_t microbatch,
    TokenSource& tokens) {
  const RunOptions& options = layers.options();
  const auto& core = layers.block(window)->attention().core();
  if (!options.document_end.has_value() || core == nullptr) {
    return std::optional<ConstTensorView>();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::span<const int64_t> all,
                           tokens.Tokens(microbatch));
  if (static_cast<int64_t>(all.size()) !=
      options.micro_batch * (options.length + 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro-batch ", microbatch, " has ", all.size(),
                     " tokens; ", options.micro_batch, " sequences of ",
                     options.length + 1, " are needed"));
  }
  const int64_t keys = options.model.WindowOf(layers.numbers()[window] - 1);
  std::vector<int64_t> first = FirstPositions(
      all, options.micro_batch, options.length, *options.document_end, keys);
  Mask& mask = masks_.try_emplace({microbatch, keys}, pool_).first->second;
  if (!mask.table.held() || mask.first_positions != first) {
    const std::vector<int64_t> numbers = core->FirstKeys(first);
    const std::array<int64_t, 3> shape =
        core->FirstKeysShape(options.micro_batch);
    TESSERA_ASSIGN_OR_RETURN(const TensorView table,
                             mask.table.Reserve(DType::kI64, shape));
    TESSERA_RETURN_IF_ERROR(staging_.Upload(
        std::as_bytes(std::span(numbers)),
        {table.data(), static_cast<size_t>(table.size_in_bytes())}));
    mask.first_positions = std::move(first);
  }
  return std::optional(ConstTensorView(mask.table.view()));
}

namespace tp = tensor_parallel;

namespace {

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Reusable storage for the activations of micro-batches in flight.
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

  // Null if the micro-batch is not in flight.
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

// Tokens on the device, uploaded by a forward or by LoadInputs.
struct FlightTokens {
  explicit FlightTokens(tp::TensorPool& pool) : own(pool) {}

  void Clear() {
    own.Release();
    view.reset();
  }

  tp::PooledTensor own;
  std::optional<TensorView> view;
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
    const ActionScope place(RankAction::kReduceGradients);
    TESSERA_RETURN_IF_ERROR(layers_.FinishGradients(window_));
    return passes_.weights.Reduce(window_);
  }

  absl::StatusOr<std::vector<TensorView>> Gradients() override {
    std::vector<TensorView> gradients;
    for (const tp::Parameter* parameter : layers_.windows()[window_]) {
      if (!parameter->trainable()) continue;
      TESSERA_ASSIGN_OR_RETURN(const TensorView own,
                               passes_.weights.OwnGradient(*parameter));
      gradients.push_back(own);
    }
    return gradients;
  }

  // The only valid name is "embedding", the table that embedding and head
  // share.
  absl::StatusOr<TensorView> TiedGradient(std::string_view name) override {
    const tp::Parameter* const table = layers_.TiedTable(window_);
    if (name != "embedding" || table == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("this stage has no tied weights \"", name, "\""));
    }
    return passes_.weights.OwnGradient(*table);
  }
  absl::Status AddGradient(ConstTensorView gradient, TensorView sum) override {
    return layers_.tensor().ops().Run(tensor_parallel::op::Add{gradient, sum});
  }
  absl::Status CopyGradient(ConstTensorView gradient,
                            TensorView copy) override {
    return layers_.tensor().ops().Run(
        tensor_parallel::op::Copy{gradient, copy});
  }

  bool KeepsInput(int32_t microbatch) const override {
    return passes_.store != nullptr &&
           passes_.store->IsAway({window_, microbatch});
  }

 protected:
  // Call it after a forward. Offloads saved activations if there is a store.
  template <typename Flight>
  absl::Status SendAway(const pipeline::ForwardPass& pass, Flight& flight) {
    const ActivationPlace place = {window_, pass.microbatch};
    if (!pass.training || passes_.store == nullptr ||
        !passes_.store->Sends(place)) {
      return absl::OkStatus();
    }
    return passes_.store->Put(place, flight.Kept());
  }
  // Call it before a backward. Restores offloaded activations.
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
  // Binds weights and gradients as the passes would.
  absl::Status LoadInputs(const pipeline::MicroBatchInputs&) override {
    TESSERA_RETURN_IF_ERROR(BeginForward());
    return passes_.weights.UseGradients(window_);
  }

  // Uploads the input tokens (or the targets) of the rank's positions, sequence
  // by sequence, as i64 [tokens].
  absl::StatusOr<TensorView> UploadTokens(int32_t microbatch, int64_t shift,
                                          tp::PooledTensor& memory) {
    TESSERA_RETURN_IF_ERROR(ReadTokens(microbatch, shift));
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView tokens,
        memory.Reserve(DType::kI64,
                       {{static_cast<int64_t>(read_tokens_.size())}}));
    TESSERA_RETURN_IF_ERROR(passes_.staging.Upload(
        std::as_bytes(std::span(read_tokens_)),
        {tokens.data(), static_cast<size_t>(tokens.size_in_bytes())}));
    return tokens;
  }

  // Uploads into memory that is reserved for the micro-batch, for LoadInputs.
  absl::Status LoadTokens(int32_t microbatch, int64_t shift) {
    const auto [loaded, is_new] =
        loaded_tokens_.try_emplace(microbatch, passes_.pool);
    return UploadTokens(microbatch, shift, loaded->second).status();
  }
  // The tokens of LoadTokens if it was called; otherwise uploads them.
  absl::StatusOr<TensorView> TokensOf(const pipeline::ForwardPass& pass,
                                      int64_t shift, FlightTokens& flight) {
    const auto loaded = loaded_tokens_.find(pass.microbatch);
    if (pass.training && loaded != loaded_tokens_.end()) {
      flight.view = loaded->second.view();
    } else {
      TESSERA_ASSIGN_OR_RETURN(
          flight.view, UploadTokens(pass.microbatch, shift, flight.own));
    }
    return *flight.view;
  }

  LlamaLayers& layers_;
  const size_t window_;
  LlamaPasses& passes_;

 private:
  absl::Status ReadTokens(int32_t microbatch, int64_t shift) {
    const RunOptions& options = layers_.options();
    TESSERA_ASSIGN_OR_RETURN(std::span<const int64_t> all,
                             passes_.tokens.Tokens(microbatch));
    int64_t stride = options.length + 1;
    int64_t least = 0;
    if (shift == 1) {
      TESSERA_ASSIGN_OR_RETURN(const std::span<const int64_t> targets,
                               passes_.tokens.Targets(microbatch));
      if (!targets.empty()) {
        all = targets;
        stride = options.length;
        shift = 0;
        least = tp::kNoTarget;
      }
    }
    if (static_cast<int64_t>(all.size()) != options.micro_batch * stride) {
      return absl::InvalidArgumentError(absl::StrCat(
          "micro-batch ", microbatch, " has ", all.size(), " tokens; ",
          options.micro_batch, " sequences of ", stride, " are needed"));
    }
    const tp::ContextGroup& context = layers_.context();
    const std::vector<int64_t> positions =
        context.layout.PositionsOf(context.group.rank());
    read_tokens_.clear();
    for (int64_t s = 0; s < options.micro_batch; ++s) {
      for (const int64_t position : positions) {
        const int64_t at = s * stride + position + shift;
        const int64_t token = all[static_cast<size_t>(at)];
        if (token < least || token >= options.model.vocabulary) {
          return absl::InvalidArgumentError(absl::StrCat(
              "token ", at, " of micro-batch ", microbatch, " is ", token,
              "; the vocabulary has 0 to ", options.model.vocabulary - 1));
        }
        read_tokens_.push_back(token);
      }
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> read_tokens_;
  std::map<int32_t, tp::PooledTensor> loaded_tokens_;  // By micro-batch.
};

class EmbeddingStage final : public LlamaStage {
 public:
  using LlamaStage::LlamaStage;

  absl::Status LoadInputs(const pipeline::MicroBatchInputs& inputs) override {
    TESSERA_RETURN_IF_ERROR(LlamaStage::LoadInputs(inputs));
    return LoadTokens(inputs.microbatch, 0);
  }
  absl::Status Forward(const pipeline::ForwardPass& pass) override {
    SharePlace(passes_.place);
    const ActionScope place(RankAction::kForward, pass.microbatch);
    TESSERA_RETURN_IF_ERROR(BeginForward());
    TESSERA_ASSIGN_OR_RETURN(FlightTokens* const flight,
                             flights_.Start(pass.microbatch, passes_.pool));
    TESSERA_ASSIGN_OR_RETURN(const TensorView ids, TokensOf(pass, 0, *flight));
    return layers_.embedding()->Forward(layers_.tokens(), ids, *pass.output);
  }
  absl::Status BackwardInput(const pipeline::BackwardPass&) override {
    return absl::OkStatus();
  }
  absl::Status BackwardWeight(const pipeline::BackwardPass& pass) override {
    SharePlace(passes_.place);
    const ActionScope place(RankAction::kBackward, pass.microbatch);
    TESSERA_ASSIGN_OR_RETURN(FlightTokens* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseGradients(window_));
    return layers_.embedding()->BackwardWeight(layers_.tokens(), *flight->view,
                                               *pass.output_gradient);
  }
  void Release(int32_t microbatch) override {
    if (auto* const flight = flights_.Release(microbatch)) flight->Clear();
  }

 private:
  Flights<FlightTokens> flights_;
};

class BlockStage final : public LlamaStage {
 public:
  using LlamaStage::LlamaStage;

  absl::Status LoadInputs(const pipeline::MicroBatchInputs& inputs) override {
    TESSERA_RETURN_IF_ERROR(LlamaStage::LoadInputs(inputs));
    return MaskOf(inputs.microbatch).status();
  }

  absl::Status Forward(const pipeline::ForwardPass& pass) override {
    SharePlace(passes_.place);
    const ActionScope place(RankAction::kForward, pass.microbatch);
    TESSERA_RETURN_IF_ERROR(BeginForward());
    TESSERA_ASSIGN_OR_RETURN(tp::BlockActivations* const flight,
                             flights_.Start(pass.microbatch, passes_.pool));
    const std::optional<int64_t> first_sequence =
        pass.training
            ? std::optional(passes_.tokens.FirstSequence(pass.microbatch))
            : std::nullopt;
    TESSERA_ASSIGN_OR_RETURN(const std::optional<ConstTensorView> mask,
                             MaskOf(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(block().Forward(layers_.options().micro_batch,
                                            *pass.input, *pass.output, *flight,
                                            first_sequence, mask));
    return SendAway(pass, *flight);
  }
  // BackwardInput also computes the gradients of adapters: they are little
  // work, and need values that are released before BackwardWeight.
  absl::Status BackwardInput(const pipeline::BackwardPass& pass) override {
    SharePlace(passes_.place);
    const ActionScope place(RankAction::kBackward, pass.microbatch);
    if (layers_.options().lora.rank > 0) return Backward(pass);
    TESSERA_ASSIGN_OR_RETURN(tp::BlockActivations* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(BringBack(pass, *flight));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseValues(window_));
    flight->set_loss_scale(pass.loss_scale * passes_.loss_factor);
    return block().BackwardInput(*pass.output_gradient, *pass.input_gradient,
                                 *flight);
  }
  absl::Status BackwardWeight(const pipeline::BackwardPass& pass) override {
    SharePlace(passes_.place);
    const ActionScope place(RankAction::kBackward, pass.microbatch);
    TESSERA_ASSIGN_OR_RETURN(tp::BlockActivations* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseGradients(window_));
    return layers_.options().lora.rank > 0 ? absl::OkStatus()
                                           : block().BackwardWeight(*flight);
  }
  absl::Status Backward(const pipeline::BackwardPass& pass) override {
    SharePlace(passes_.place);
    const ActionScope place(RankAction::kBackward, pass.microbatch);
    TESSERA_ASSIGN_OR_RETURN(tp::BlockActivations* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(BringBack(pass, *flight));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseValues(window_));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseGradients(window_));
    flight->set_loss_scale(pass.loss_scale * passes_.loss_factor);
    return block().Backward(*pass.output_gradient, *pass.input_gradient,
                            *flight);
  }
  void Release(int32_t microbatch) override {
    if (auto* const flight = flights_.Release(microbatch)) flight->Clear();
  }

 private:
  tp::TransformerBlock& block() { return *layers_.block(window_); }
  absl::StatusOr<std::optional<ConstTensorView>> MaskOf(int32_t microbatch) {
    return passes_.documents.Of(layers_, window_, microbatch, passes_.tokens);
  }

  Flights<tp::BlockActivations> flights_;
};

struct HeadFlight {
  explicit HeadFlight(tp::TensorPool& pool)
      : activations(pool), targets(pool), scales(pool) {}

  void Clear() {
    activations.Clear();
    targets.Clear();
    scales.Release();
  }

  tp::HeadActivations activations;
  FlightTokens targets;
  // Of pairs: the derivative of the loss for each sequence, and the scales.
  std::vector<double> slopes;
  tp::PooledTensor scales;
};

class HeadStage final : public LlamaStage {
 public:
  HeadStage(LlamaLayers& layers, size_t window, LlamaPasses& passes)
      : LlamaStage(layers, window, passes),
        scales_(layers.tensor().memory(), layers.tensor().queue()) {}

  absl::Status LoadInputs(const pipeline::MicroBatchInputs& inputs) override {
    TESSERA_RETURN_IF_ERROR(LlamaStage::LoadInputs(inputs));
    TESSERA_RETURN_IF_ERROR(LoadTokens(inputs.microbatch, 1));
    return ScalesOf(inputs.loss_scale).status();
  }

  absl::Status Forward(const pipeline::ForwardPass& pass) override {
    SharePlace(passes_.place);
    const ActionScope place(RankAction::kForward, pass.microbatch);
    TESSERA_RETURN_IF_ERROR(BeginForward());
    TESSERA_ASSIGN_OR_RETURN(HeadFlight* const flight,
                             flights_.Start(pass.microbatch, passes_.pool));
    TESSERA_ASSIGN_OR_RETURN(const TensorView targets,
                             TokensOf(pass, 1, flight->targets));
    tp::PooledTensor memory(passes_.pool);
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView losses,
        memory.Reserve(DType::kF64, {{layers_.tokens().size()}}));
    TESSERA_RETURN_IF_ERROR(head().Forward(
        layers_.tokens(), *pass.input, targets, losses, flight->activations));
    if (layers_.options().dpo_beta.has_value()) {
      TESSERA_RETURN_IF_ERROR(ForwardPairs(pass, losses, *flight));
    } else if (pass.loss != nullptr) {
      TESSERA_RETURN_IF_ERROR(
          layers_.tensor().ops().Run(tensor_parallel::op::Sum{
              1 / tokens_of_microbatch(), losses, *pass.loss}));
    }
    return SendAway(pass, flight->activations);
  }
  absl::Status BackwardInput(const pipeline::BackwardPass& pass) override {
    SharePlace(passes_.place);
    const ActionScope place(RankAction::kBackward, pass.microbatch);
    TESSERA_ASSIGN_OR_RETURN(HeadFlight* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(BringBack(pass, flight->activations));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseValues(window_));
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView scales,
                             ScalesOf(pass.loss_scale, *flight));
    return head().BackwardInput(scales, *pass.input_gradient,
                                flight->activations);
  }
  absl::Status BackwardWeight(const pipeline::BackwardPass& pass) override {
    SharePlace(passes_.place);
    const ActionScope place(RankAction::kBackward, pass.microbatch);
    TESSERA_ASSIGN_OR_RETURN(HeadFlight* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseGradients(window_));
    return head().BackwardWeight(flight->activations);
  }
  absl::Status Backward(const pipeline::BackwardPass& pass) override {
    SharePlace(passes_.place);
    const ActionScope place(RankAction::kBackward, pass.microbatch);
    TESSERA_ASSIGN_OR_RETURN(HeadFlight* const flight,
                             flights_.Find(pass.microbatch));
    TESSERA_RETURN_IF_ERROR(BringBack(pass, flight->activations));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseValues(window_));
    TESSERA_RETURN_IF_ERROR(passes_.weights.UseGradients(window_));
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView scales,
                             ScalesOf(pass.loss_scale, *flight));
    return head().Backward(scales, *pass.input_gradient, flight->activations);
  }
  void Release(int32_t microbatch) override {
    if (auto* const flight = flights_.Release(microbatch)) flight->Clear();
  }

 private:
  tp::OutputHead& head() { return *layers_.head(); }
  double tokens_of_microbatch() const {
    return static_cast<double>(layers_.options().micro_batch *
                               layers_.options().length);
  }

  // The log-probability of each sequence's targets. The host waits for them.
  absl::StatusOr<std::vector<double>> LogProbabilities(
      const TensorView& losses) {
    tp::Ops& ops = layers_.tensor().ops();
    const int64_t sequences = layers_.options().micro_batch;
    const int64_t tokens = losses.element_count() / sequences;
    tp::PooledTensor memory(passes_.pool);
    TESSERA_ASSIGN_OR_RETURN(const TensorView sums,
                             memory.Reserve(DType::kF64, {{sequences}}));
    for (int64_t s = 0; s < sequences; ++s) {
      TESSERA_ASSIGN_OR_RETURN(const TensorView own,
                               losses.Narrow(0, s * tokens, tokens));
      TESSERA_ASSIGN_OR_RETURN(const TensorView sum, sums.Narrow(0, s, 1));
      TESSERA_RETURN_IF_ERROR(ops.Run(tensor_parallel::op::Sum{-1, own, sum}));
    }
    TESSERA_RETURN_IF_ERROR(layers_.context().group.SumOver(sums));
    std::vector<double> numbers(static_cast<size_t>(sequences));
    if (!ops.computes()) return numbers;
    TESSERA_ASSIGN_OR_RETURN(
        const Download download,
        passes_.staging.StartDownload(
            {sums.data(), static_cast<size_t>(sums.size_in_bytes())}));
    TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                             download.Wait());
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }

  // The loss of the micro-batch's pairs, of which each context rank reports its
  // share. Without references only finds the log-probabilities.
  absl::Status ForwardPairs(const pipeline::ForwardPass& pass,
                            const TensorView& losses, HeadFlight& flight) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<double> policy,
                             LogProbabilities(losses));
    TESSERA_ASSIGN_OR_RETURN(const std::span<const double> references,
                             passes_.tokens.References(pass.microbatch));
    PreferenceLoss loss;
    loss.slopes.resize(policy.size());
    if (!references.empty()) {
      loss = PreferenceLossOf(*layers_.options().dpo_beta, policy, references);
    }
    flight.slopes = std::move(loss.slopes);
    if (pass.training) passes_.rewards.Add(loss.rewards);
    passes_.log_probabilities[pass.microbatch] = std::move(policy);
    if (pass.loss == nullptr) return absl::OkStatus();
    const auto ranks = static_cast<double>(layers_.context().group.size());
    return layers_.tensor().ops().Run(
        tensor_parallel::op::Fill{loss.mean / ranks, *pass.loss});
  }

  absl::StatusOr<ConstTensorView> ScalesOf(double loss_scale,
                                           HeadFlight& flight) {
    if (!layers_.options().dpo_beta.has_value()) return ScalesOf(loss_scale);
    const int64_t tokens = layers_.tokens().size();
    TESSERA_ASSIGN_OR_RETURN(const TensorView scales,
                             flight.scales.Reserve(DType::kF64, {{tokens}}));
    std::vector<double> numbers;
    for (const double slope : flight.slopes) {
      numbers.insert(numbers.end(),
                     static_cast<size_t>(tokens) / flight.slopes.size(),
                     slope * loss_scale * passes_.loss_factor);
    }
    TESSERA_RETURN_IF_ERROR(passes_.staging.Upload(
        std::as_bytes(std::span(numbers)),
        {scales.data(), static_cast<size_t>(scales.size_in_bytes())}));
    return ConstTensorView(scales);
  }

  // The same number for every token, f64 on the device.
  absl::StatusOr<ConstTensorView> ScalesOf(double loss_scale) {
    const double scale = loss_scale * passes_.loss_factor *
                         passes_.target_factor / tokens_of_microbatch();
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView scales,
        scales_.Get(DType::kF64, {{layers_.tokens().size()}}));
    if (scale_ != scale) {
      TESSERA_RETURN_IF_ERROR(
          layers_.tensor().ops().Run(tensor_parallel::op::Fill{scale, scales}));
      scale_ = scale;
    }
    return ConstTensorView(scales);
  }

  Flights<HeadFlight> flights_;
  tp::ReusableTensor scales_;
  std::optional<double> scale_;  // The value that fills `scales_`.
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
  const RunOptions& options = layers.options();
  const tp::Partition& tokens = layers.tokens();
  const int64_t rows = layers.tensor().TokensBetweenLayers(tokens).size();
  return {options.dtype, {rows, options.model.hidden}};
}

}  // namespace tessera::train
