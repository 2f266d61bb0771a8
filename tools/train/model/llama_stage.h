// TokenSource: the tokens of a step's micro-batches, as a stage asks for them.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_
#define TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "pipeline/execute/stage.h"
#include "tensor_parallel/blocks/attention_options.h"
#include "tensor_parallel/blocks/output_head.h"
#include "tensor_parallel/blocks/recompute.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/layers/vocabulary_parallel_embedding.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/model_files/model_config.h"
#include "tools/train/model/activation_store.h"

namespace tessera::train {

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // [sequences, length + 1] tokens of micro-batch `microbatch` of this rank's
  // pipeline: inputs, and shifted by one what is to be predicted. Good until
  // the step ends.
  virtual absl::StatusOr<std::span<const int64_t>> Tokens(
      int32_t microbatch) = 0;
};

// WeightAccess: where the values and gradients of a rank's layers are while a
// step runs. Its windows are those of LlamaLayers: lists of parameters that are
// used together, a layer's.
//
//   weights.StartGather(3);                // Goes on beside other work.
//   weights.UseValues(3);                  // The layer may compute.
//   weights.UseGradients(3);               // Its backward may add to
//   gradients. weights.Reduce(3);                     // Sums over
//   data-parallel ranks. weights.Release(3);

class WeightAccess {
 public:
  virtual ~WeightAccess() = default;

  // Collectives of data-parallel ranks, which make them in the same order.
  virtual absl::Status StartGather(size_t window) = 0;
  virtual absl::Status Reduce(size_t window) = 0;

  // Returns when the window's parameters are bound to their values, or to
  // gradients to be added to.
  virtual absl::Status UseValues(size_t window) = 0;
  virtual absl::Status UseGradients(size_t window) = 0;
  // The values that StartGather has made.
  virtual absl::Status Release(size_t window) = 0;

  // The sums that this rank owns of a parameter's gradient after Reduce, in any
  // shape; until the optimizer's step.
  virtual absl::StatusOr<TensorView> OwnGradient(
      const tensor_parallel::Parameter& parameter) = 0;
};

// Weights that are in the layers' own memory at all times.
class ResidentWeights final : public WeightAccess {
 public:
  absl::Status StartGather(size_t) override { return absl::OkStatus(); }
  absl::Status Reduce(size_t) override { return absl::OkStatus(); }
  absl::Status UseValues(size_t) override { return absl::OkStatus(); }
  absl::Status UseGradients(size_t) override { return absl::OkStatus(); }
  absl::Status Release(size_t) override { return absl::OkStatus(); }
  absl::StatusOr<TensorView> OwnGradient(
      const tensor_parallel::Parameter& parameter) override {
    return parameter.gradient();
  }
};

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

// LlamaStage: a window of LlamaLayers (the embedding, a transformer block or
// the head) as a stage of a pipeline.
//
//   LlamaPasses passes(tokens, weights);
//   for (size_t window = 0; window < layers->windows().size(); ++window) {
//     stages.push_back(MakeLlamaStage(*layers, window, passes));
//   }
//
// What travels between stages is [tokens of this rank, hidden]: those of its
// positions under context parallelism, and of its part of these under sequence
// parallelism. Stages refer to the tensors that the executor holds, and copy
// none.
//
// A micro-batch's loss is the mean over its tokens; under context parallelism
// each rank has its tokens' share, so that the sum over the context group is
// the loss. Gradients are of the loss times LlamaPasses::loss_factor. They add
// up over micro-batches.

// What the stages of a rank have in common. The references outlive it.
struct LlamaPasses {
  static constexpr int64_t kNever = INT64_MAX;

  // Activations are in memory of `memory`, and with `store` away between a
  // forward and its backward. What embeddings keep, their tokens, stays.
  LlamaPasses(TokenSource& tokens, WeightAccess& weights,
              std::shared_ptr<MemoryResource> memory = HostMemory(),
              ActivationStore* store = nullptr)
      : tokens(tokens),
        weights(weights),
        store(store),
        pool(std::move(memory)) {}

  // Before the first pass of a step.
  void BeginStep() {
    first_pass_ns = kNever;
    pool.ResetPeak();
  }

  TokenSource& tokens;
  WeightAccess& weights;
  ActivationStore* const store;      // Null: activations stay.
  tensor_parallel::TensorPool pool;  // Of activations.
  // What the loss is multiplied by, for the gradients of this step.
  double loss_factor = 1;
  // When the first forward of the step began, in nanoseconds of
  // CLOCK_MONOTONIC; kNever if there was none.
  int64_t first_pass_ns = kNever;
};

// `layers` and `passes` outlive the stage.
std::unique_ptr<pipeline::Stage> MakeLlamaStage(LlamaLayers& layers,
                                                size_t window,
                                                LlamaPasses& passes);

// What travels between any two stages.
pipeline::TensorSpec BoundaryOf(const LlamaLayers& layers);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_
