// LlamaLayers: the layers of a Llama model that a rank holds.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto layers, LlamaLayers::Create(tensor, context, {.model = config,
//                                                          .sequences = 2,
//                                                          .length = 512},
//                                        {0, 1, 2}));
//
// A model of L layers has L + 2 windows: 0 is the embedding, 1 to L are the
// transformer blocks, L + 1 is the head. Each is a pipeline stage of its own
// (llama_stage.h), and its parameters are gathered and reduced together.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_LLAMA_LAYERS_H_
#define TESSERA_TOOLS_TRAIN_MODEL_LLAMA_LAYERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "tensor_parallel/blocks/attention_options.h"
#include "tensor_parallel/blocks/output_head.h"
#include "tensor_parallel/blocks/recompute.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/vocabulary_parallel_embedding.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {

struct LlamaOptions {
  model_files::ModelConfig model = {};
  // Of a micro-batch.
  int64_t sequences = 1;
  int64_t length = 0;
  DType dtype = DType::kF32;
  bool sequence_parallel = false;
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;
  // A head on the rank of the embedding shares its table, if the model ties
  // them. Otherwise each has a table, and the caller sums their gradients.
  bool shares_table = true;
};

using ParameterWindow = std::vector<tensor_parallel::Parameter*>;

class LlamaLayers {
 public:
  // How many windows a model has.
  static int64_t WindowsOf(const model_files::ModelConfig& model) {
    return model.layers + 2;
  }

  // A collective of both groups, which outlive the layers. `windows` are the
  // rank's, ascending. Refuses what the layers refuse.
  static absl::StatusOr<std::unique_ptr<LlamaLayers>> Create(
      const tensor_parallel::TensorGroup& tensor,
      const tensor_parallel::ContextGroup& context, const LlamaOptions& options,
      std::vector<int32_t> windows);

  const LlamaOptions& options() const { return options_; }
  const tensor_parallel::TensorGroup& tensor() const { return tensor_; }
  const tensor_parallel::ContextGroup& context() const { return context_; }
  // The tokens of a micro-batch on this context rank, and how tensor ranks
  // share them under sequence parallelism.
  const tensor_parallel::Partition& tokens() const { return tokens_; }

  // The numbers of the rank's windows, and the parameters of each, named as
  // "layers.7.attention.qkv.weight". A table that embedding and head share is
  // in both windows.
  std::span<const int32_t> numbers() const { return numbers_; }
  std::span<const ParameterWindow> windows() const { return windows_; }
  // A head's copy of a table that the embedding has too; null: none.
  const tensor_parallel::Parameter* copied_table();
  // The table that embedding and head have in common, of the window; null if it
  // has none, or the model does not tie them.
  tensor_parallel::Parameter* TiedTable(size_t window);

  // Null if the rank has none.
  tensor_parallel::VocabularyParallelEmbedding* embedding() {
    return embedding_ ? &*embedding_ : nullptr;
  }
  tensor_parallel::OutputHead* head() { return head_ ? &*head_ : nullptr; }
  // Null unless the window is a block.
  tensor_parallel::TransformerBlock* block(size_t window) {
    return blocks_[window].get();
  }
  bool IsEmbedding(size_t window) const { return numbers_[window] == 0; }
  bool IsHead(size_t window) const {
    return numbers_[window] == options_.model.layers + 1;
  }

  // Sums over the tensor group the gradients of weights of which its ranks have
  // parts, since they were last summed. A collective of the tensor group.
  absl::Status FinishGradients(size_t window);

 private:
  LlamaLayers(const tensor_parallel::TensorGroup& tensor,
              const tensor_parallel::ContextGroup& context,
              const LlamaOptions& options, std::vector<int32_t> windows);

  absl::Status CreateEmbedding();
  absl::Status CreateBlock(size_t window);
  absl::Status CreateHead();

  const tensor_parallel::TensorGroup tensor_;
  const tensor_parallel::ContextGroup context_;
  const LlamaOptions options_;
  const std::vector<int32_t> numbers_;
  tensor_parallel::Partition tokens_;
  std::optional<tensor_parallel::VocabularyParallelEmbedding> embedding_;
  std::vector<std::unique_ptr<tensor_parallel::TransformerBlock>> blocks_;
  std::optional<tensor_parallel::OutputHead> head_;
  std::vector<ParameterWindow> windows_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_LLAMA_LAYERS_H_
