#include "tools/train/model/llama_layers.h"

#include <utility>

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
                         .sequence_parallel = options_.sequence_parallel},
           .hidden = model.intermediate,
           .norm_epsilon = model.norm_epsilon,
           .recompute = options_.recompute,
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

}  // namespace tessera::train
