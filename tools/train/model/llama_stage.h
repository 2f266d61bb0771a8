// The layers of a Llama model that a rank holds, and each of their windows (the
// embedding, a transformer block or the head) as a pipeline stage.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto layers,
//       LlamaLayers::Create(tensor, context,
//                           {.model = config, .sequences = 2, .length = 512},
//                           {0, 1, 2}));
//   LlamaPasses passes(tokens, weights, tensor);
//   for (size_t window = 0; window < layers->windows().size(); ++window) {
//     stages.push_back(MakeLlamaStage(*layers, window, passes));
//   }
//
// Stages exchange tensors of shape [tokens of this rank, hidden]: the rank's
// positions under context parallelism, and its part of these under sequence
// parallelism. Stages refer to the executor's tensors without copying.
//
// A micro-batch's loss is the sum of its tokens' losses, divided by the number
// of all tokens, including those without a target. Under context parallelism
// each rank computes the share of its tokens, and the sum over the context
// group is the loss. Gradients are scaled by LlamaPasses::loss_factor and
// target_factor, and summed over micro-batches.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_
#define TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/device/staging.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "pipeline/execute/stage.h"
#include "tensor_parallel/blocks/attention.h"
#include "tensor_parallel/blocks/moe_mlp.h"
#include "tensor_parallel/blocks/output_head.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/linear_products.h"
#include "tensor_parallel/layers/lora.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/layers/vocabulary.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/model_files/model_config.h"
#include "tools/train/model/activation_store.h"
#include "tools/train/model/preference_loss.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/watch/live_place.h"

namespace tessera::train {

// The tokens of a step's micro-batches.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // [sequences, length + 1] tokens of micro-batch `microbatch` of this rank's
  // pipeline: the inputs, and the targets shifted by one. Valid until the step
  // ends.
  virtual absl::StatusOr<std::span<const int64_t>> Tokens(
      int32_t microbatch) = 0;

  // [sequences, length] targets of the inputs, some of which are
  // tensor_parallel::kNoTarget. If empty, the targets are those of Tokens.
  // Valid until the step ends.
  virtual absl::StatusOr<std::span<const int64_t>> Targets(
      int32_t /*microbatch*/) {
    return std::span<const int64_t>();
  }

  // With RunOptions::dpo_beta, the reference's log-probabilities of the
  // completions of the micro-batch's sequences; empty while they are unknown.
  // Valid until the step ends.
  virtual absl::StatusOr<std::span<const double>> References(
      int32_t /*microbatch*/) {
    return std::span<const double>();
  }

  // The index of the micro-batch's first sequence in the whole run. Dropout
  // masks depend on it.
  virtual int64_t FirstSequence(int32_t /*microbatch*/) const { return 0; }
};

// Access to the values and gradients of a rank's layers during a step, by
// window of LlamaLayers. A window is a list of parameters that are used
// together.
//
//   weights.StartGather(3);   // asynchronous
//   weights.UseValues(3);     // the layer may compute
//   weights.UseGradients(3);  // its backward may add to gradients
//   weights.Reduce(3);        // sums over data-parallel ranks
//   weights.Release(3);
class WeightAccess {
 public:
  virtual ~WeightAccess() = default;

  // StartGather and Reduce are collectives of the data-parallel ranks, which
  // must call them in the same order.
  virtual absl::Status StartGather(size_t window) = 0;
  virtual absl::Status Reduce(size_t window) = 0;

  // Return when the window's parameters are bound to their values, or to the
  // gradients to which the backward adds.
  virtual absl::Status UseValues(size_t window) = 0;
  virtual absl::Status UseGradients(size_t window) = 0;
  // Releases the gathered values.
  virtual absl::Status Release(size_t window) = 0;

  // The part of a parameter's reduced gradient that this rank owns, in any
  // shape. Valid after Reduce, until the optimizer's step.
  virtual absl::StatusOr<TensorView> OwnGradient(
      const tensor_parallel::Parameter& parameter) = 0;
};

// Weights that stay in the layers' own memory.
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

using ParameterWindow = std::vector<tensor_parallel::Parameter*>;

// The options of a transformer block, without fp8 and borrowed tensors.
tensor_parallel::TransformerBlockOptions BlockOptionsOf(
    const RunOptions& options, int64_t layer);

// A model of L layers has L + 2 windows: 0 is the embedding, 1 to L are the
// transformer blocks, L + 1 is the head. The parameters of a window are
// gathered and reduced together.
class LlamaLayers {
 public:
  // The number of windows of a model.
  static int64_t WindowsOf(const model_files::ModelConfig& model) {
    return model.layers + 2;
  }

  // A collective of the groups, which must outlive the layers. `windows` are
  // the numbers of the rank's windows, ascending. `experts` are the ranks that
  // divide mixtures of experts, by default only this rank. If the model ties
  // embedding and head and both are on this rank, they share one table if
  // `shares_table`; otherwise each has its own, and the caller sums their
  // gradients. Returns errors of the layers.
  static absl::StatusOr<std::unique_ptr<LlamaLayers>> Create(
      const tensor_parallel::TensorGroup& tensor,
      const tensor_parallel::ContextGroup& context, const RunOptions& options,
      std::vector<int32_t> windows,
      const std::optional<tensor_parallel::TensorGroup>& experts = std::nullopt,
      bool shares_table = true);

  const RunOptions& options() const { return options_; }
  const tensor_parallel::TensorGroup& tensor() const { return tensor_; }
  const tensor_parallel::ContextGroup& context() const { return context_; }
  // The partition of a micro-batch's tokens on this context rank over tensor
  // ranks under sequence parallelism.
  const tensor_parallel::Partition& tokens() const { return tokens_; }

  // The numbers of the rank's windows, and the parameters of each, with names
  // such as "layers.7.attention.qkv.weight". A table shared by embedding and
  // head is in both windows.
  std::span<const int32_t> numbers() const { return numbers_; }
  std::span<const ParameterWindow> windows() const { return windows_; }
  // The head's copy of the embedding's table; null if there is none.
  const tensor_parallel::Parameter* copied_table();
  // The window's tied table of embedding and head; null if there is none or it
  // is not trained.
  tensor_parallel::Parameter* TiedTable(size_t window);

  // Null if the rank has no embedding.
  tensor_parallel::VocabularyParallelEmbedding* embedding() {
    return embedding_ ? &*embedding_ : nullptr;
  }
  tensor_parallel::OutputHead* head() { return head_ ? &*head_ : nullptr; }
  // The window's block; null if the window is not a block.
  tensor_parallel::TransformerBlock* block(size_t window) {
    return blocks_[window].get();
  }
  bool IsEmbedding(size_t window) const { return numbers_[window] == 0; }
  bool IsHead(size_t window) const {
    return numbers_[window] == options_.model.layers + 1;
  }

  // Sums the partial gradients since the last call over the tensor group. A
  // collective of the tensor group.
  absl::Status FinishGradients(size_t window);

  // Null without fp8.
  tensor_parallel::Fp8Scaling* fp8() { return fp8_.get(); }
  // The numbers in fp8() of a transformer layer's linear layers.
  struct Fp8Layers {
    int64_t layer = 0;  // Of the model.
    int64_t first = 0;
    int64_t count = 0;
  };
  // By transformer layer of the rank, ascending.
  std::vector<Fp8Layers> fp8_layers() const;
  // Updates the scales of fp8 from the magnitudes of a step on all ranks that
  // have the same layers, after its last backward. A collective of the tensor
  // group and of `data`, the data and context ranks. No-op without fp8.
  absl::Status FinishFp8Step(collectives::Communicator& data) {
    return fp8_ == nullptr ? absl::OkStatus() : fp8_->FinishStep(&data);
  }
  // Discards the magnitudes of passes that are not training.
  absl::Status DiscardFp8Step() {
    return fp8_ == nullptr ? absl::OkStatus() : fp8_->DiscardStep();
  }

 private:
  LlamaLayers(const tensor_parallel::TensorGroup& tensor,
              const tensor_parallel::ContextGroup& context,
              const std::optional<tensor_parallel::TensorGroup>& experts,
              const RunOptions& options, std::vector<int32_t> windows,
              bool shares_table);

  absl::Status CreateFp8();
  absl::Status CreateEmbedding();
  void FreezeAllButAdapters();
  absl::Status CreateBlock(size_t window);
  absl::Status CreateHead();

  const tensor_parallel::TensorGroup tensor_;
  const tensor_parallel::ContextGroup context_;
  const std::optional<tensor_parallel::TensorGroup> experts_;
  const RunOptions options_;
  const std::vector<int32_t> numbers_;
  const bool shares_table_;
  tensor_parallel::Partition tokens_;
  std::shared_ptr<tensor_parallel::Fp8Scaling> fp8_;  // Null without fp8.
  std::optional<tensor_parallel::VocabularyParallelEmbedding> embedding_;
  std::vector<std::unique_ptr<tensor_parallel::TransformerBlock>> blocks_;
  std::optional<tensor_parallel::OutputHead> head_;
  std::vector<ParameterWindow> windows_;
};

// Returns the first position that each token attends to, [sequences, length]:
// the start of its document, or of the attention window (0: no window) if that
// is later. `tokens` are [sequences, length + 1]; `document_end` is the last
// token of a document.
std::vector<int64_t> FirstPositions(std::span<const int64_t> tokens,
                                    int64_t sequences, int64_t length,
                                    int64_t document_end, int64_t window);

// The document masks on the device, by micro-batch and attention window. The
// blocks of a rank share them. Each micro-batch reuses its memory in every
// step.
class DocumentMasks {
 public:
  // `pool` and `staging` outlive it.
  DocumentMasks(tensor_parallel::TensorPool& pool, StagingPool& staging)
      : pool_(pool), staging_(staging) {}

  // Returns the mask for TransformerBlock::Forward. Uploads it if the
  // micro-batch's documents have changed. Returns nullopt without
  // RunOptions::document_end or if the rank has no heads.
  absl::StatusOr<std::optional<ConstTensorView>> Of(LlamaLayers& layers,
                                                    size_t window,
                                                    int32_t microbatch,
                                                    TokenSource& tokens);

 private:
  struct Mask {
    explicit Mask(tensor_parallel::TensorPool& pool) : table(pool) {}

    tensor_parallel::PooledTensor table;
    std::vector<int64_t> first_positions;
  };

  tensor_parallel::TensorPool& pool_;
  StagingPool& staging_;
  std::map<std::pair<int32_t, int64_t>, Mask> masks_;
};

// The state that all stages of a rank share. The references must outlive it.
struct LlamaPasses {
  static constexpr int64_t kNever = INT64_MAX;

  // `group` provides the memory of activations and the queue for all work on
  // them. With `store`, activations are offloaded between a forward and its
  // backward, except the tokens that embeddings and heads keep.
  LlamaPasses(TokenSource& tokens, WeightAccess& weights,
              const tensor_parallel::TensorGroup& group,
              ActivationStore* store = nullptr)
      : tokens(tokens),
        weights(weights),
        store(store),
        pool(group.memory(), &group.queue()),
        staging(group.queue()),
        documents(pool, staging) {}

  // Call it before the first pass of a step. Passes may be captured and
  // replayed (pipeline::ExecutorOptions::captures) unless there is a store or
  // dropout, whose masks depend on the step. For captured passes LoadInputs
  // copies tokens and the gradient of the loss to the device.
  void BeginStep() {
    first_pass_ns = kNever;
    rewards = {};
    pool.ResetPeak();
  }

  TokenSource& tokens;
  WeightAccess& weights;
  ActivationStore* store;            // Null: no offloading.
  tensor_parallel::TensorPool pool;  // For activations.
  StagingPool staging;               // For tokens.
  DocumentMasks documents;
  // Scales the loss of this step, and thereby its gradients.
  double loss_factor = 1;
  // Also scales the gradients of the targets' losses, but not of the terms that
  // mixtures of experts add for all tokens: the number of tokens of the step
  // divided by the number of tokens with a target.
  double target_factor = 1;
  // The start of the step's first forward, in nanoseconds of CLOCK_MONOTONIC;
  // kNever if there was none.
  int64_t first_pass_ns = kNever;
  // The place of the rank that made this; interleaved passes run on another
  // thread. Null: none.
  PlacePage* const place = AttachedPlace();
  // With RunOptions::dpo_beta, on ranks with the head: the rewards of the
  // step's pairs, and the log-probabilities of the completions in the last
  // forward of each micro-batch.
  RewardSums rewards;
  std::map<int32_t, std::vector<double>> log_probabilities;
};

// `layers` and `passes` outlive the stage.
std::unique_ptr<pipeline::Stage> MakeLlamaStage(LlamaLayers& layers,
                                                size_t window,
                                                LlamaPasses& passes);

// The tensor between any two stages.
pipeline::TensorSpec BoundaryOf(const LlamaLayers& layers);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_
