// Inference with a Llama model: its weights as whole tensors, and a decoder
// that reads tokens one after another and predicts the next one. The decoder
// caches keys and values, so that each token is computed only once.
//
//   TESSERA_ASSIGN_OR_RETURN(LlamaWeights weights,
//                            LlamaWeights::Read(reader, DType::kF32));
//   TESSERA_ASSIGN_OR_RETURN(auto decoder,
//                            LlamaDecoder::Create(weights, ops, 1024));
//   TESSERA_ASSIGN_OR_RETURN(std::vector<double> logits,
//                            decoder->Append(prompt));
//   TESSERA_ASSIGN_OR_RETURN(logits, decoder->Append({{ArgMax(logits)}}));
//
// The cache holds 2 * KvRows() numbers per layer and token; with latent
// attention kv_rank + rope, because keys and values are not computed: the
// projection of keys is applied to queries, and that of values to the sums
// (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
#ifndef TESSERA_TOOLS_TRAIN_SAMPLE_LLAMA_DECODER_H_
#define TESSERA_TOOLS_TRAIN_SAMPLE_LLAMA_DECODER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/moe_mlp.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {

// Reads the weights of a Llama model as whole tensors.
class WeightReader {
 public:
  virtual ~WeightReader() = default;

  virtual const model_files::ModelConfig& config() const = 0;

  // Reads rows [row_begin, row_end) of a whole parameter in the order of
  // llama_names.h; a norm's rows are its elements. Not called for the head of
  // tied embeddings. InvalidArgument if the rows do not exist or `target` has
  // another size.
  virtual absl::Status Read(model_files::LlamaPart part, int64_t layer,
                            int64_t row_begin, int64_t row_end,
                            std::span<float> target) = 0;

  // The tokens that end a text according to the files of the model.
  virtual absl::StatusOr<std::vector<int64_t>> EndsOfText() const {
    return std::vector<int64_t>();
  }
};

// The weights of one layer, which llama_names.h defines.
using LlamaLayerWeights = std::map<model_files::LlamaPart, Tensor>;

// All weights of a model in the memory of this process.
class LlamaWeights {
 public:
  // `dtype` is f32 or f64. InvalidArgument for other types and invalid models.
  // Also returns errors of the reader.
  static absl::StatusOr<LlamaWeights> Read(WeightReader& reader, DType dtype);

  const model_files::ModelConfig& config() const { return config_; }
  ConstTensorView embedding() const { return embedding_.view(); }
  const std::vector<LlamaLayerWeights>& layers() const { return layers_; }
  std::vector<LlamaLayerWeights>& layers() { return layers_; }
  const Tensor& norm() const { return norm_; }
  // The embedding if the model ties them.
  ConstTensorView head() const { return head_ ? head_->view() : embedding(); }

 private:
  LlamaWeights(const model_files::ModelConfig& config, Tensor embedding,
               std::vector<LlamaLayerWeights> layers, Tensor norm,
               std::optional<Tensor> head)
      : config_(config),
        embedding_(std::move(embedding)),
        layers_(std::move(layers)),
        norm_(std::move(norm)),
        head_(std::move(head)) {}

  model_files::ModelConfig config_;
  Tensor embedding_;
  std::vector<LlamaLayerWeights> layers_;
  Tensor norm_;
  std::optional<Tensor> head_;
};

// Predicts tokens with a cache of keys and values. One thread at a time.
class LlamaDecoder {
 public:
  // Creates a decoder for up to `capacity` tokens, which may differ from the
  // model's positions. `weights`, which the decoder does not change, and `ops`,
  // on the CPU, must outlive this. InvalidArgument if `capacity` is below 1.
  static absl::StatusOr<std::unique_ptr<LlamaDecoder>> Create(
      LlamaWeights& weights, tensor_parallel::Ops& ops, int64_t capacity);

  int64_t capacity() const { return capacity_; }
  // The number of tokens so far.
  int64_t length() const { return length_; }

  // Appends at least one token and returns the logits of the whole vocabulary
  // for the next one. Errors, without side effects: InvalidArgument if there is
  // no token or one is not in the vocabulary; OutOfRange if the capacity is
  // exceeded.
  absl::StatusOr<std::vector<double>> Append(std::span<const int64_t> tokens);

  // Appends `tokens` like Append and returns log p(target) for each of them:
  // the natural logarithm of the probability that the model gives to the target
  // as the next token. Returns the errors of Append, and InvalidArgument,
  // without side effects, unless there is one target per token and all are in
  // the vocabulary.
  absl::StatusOr<std::vector<double>> Score(std::span<const int64_t> tokens,
                                            std::span<const int64_t> targets);

  // Forgets all tokens.
  void Clear() { length_ = 0; }

 private:
  // The turns of the current batch's positions. The rotation is that for the
  // number of tokens after the current call, as in transformers.
  struct RotaryTable {
    tensor_parallel::Rotation rotation;
    std::optional<Tensor> values;
  };
  // Per layer: [capacity, kv rows]; with latent attention [capacity, rope +
  // kv_rank] and no values.
  struct Cache {
    Tensor keys;
    std::optional<Tensor> values;
  };
  // Scratch matrices with one row per token of a batch.
  enum class Rows {
    kHidden,
    kNormed,
    kQuery,
    kAttended,  // The output of the attention.
    kDown,      // The projection to latent vectors.
    kAbsorbed,  // [heads (rope + kv_rank)], queries of latents.
    kLatents,   // [heads (rope + kv_rank)], weighted sums.
    kLogSums,   // [heads]
    kFactors,   // [heads], of the outputs with sinks.
    kGate,
    kUp,
    kActivation,
    kMixed,  // A sublayer's output before its norm.
  };

  LlamaDecoder(LlamaWeights& weights, tensor_parallel::Ops& ops,
               int64_t capacity)
      : weights_(weights),
        config_(weights.config()),
        ops_(ops),
        capacity_(capacity),
        group_(tensor_parallel::TensorGroup(ops).WithoutWeightMemory()),
        pool_(group_.memory(), &ops.queue()),
        mixture_activations_(pool_) {}

  absl::Status Allocate();
  absl::Status CreateMixtures();
  // The first rows of a scratch matrix, and `count` scratch numbers of norms.
  // There are at most kMostAtOnce rows.
  TensorView First(Rows rows, int64_t count);
  TensorView Inverse(int64_t count);
  absl::Status CheckTokens(std::span<const int64_t> tokens) const;
  absl::Status CheckVocabulary(std::span<const int64_t> tokens) const;
  // Runs `tokens` in batches. After each, calls `after(first, count)` with the
  // batch's range in `tokens`, while `hidden` has its rows. No token is
  // appended after an error.
  absl::Status RunBatches(
      std::span<const int64_t> tokens,
      absl::FunctionRef<absl::Status(size_t first, size_t count)> after);
  absl::Status RunBatch(std::span<const int64_t> tokens);
  absl::Status RunAttention(size_t number, int64_t first, int64_t count);
  absl::Status RunLatentAttention(size_t number, int64_t first, int64_t count);
  // Sets the cache's rows of the last tokens, and kQuery.
  absl::Status SetLatents(const LlamaLayerWeights& layer,
                          const TensorView& rows);
  absl::Status AbsorbQueries(const LlamaLayerWeights& layer, int64_t count);
  absl::Status ProjectValues(const LlamaLayerWeights& layer, int64_t count);
  // Rotates the last tokens' heads in a layer.
  absl::Status Rotate(size_t number, TensorView heads);
  absl::Status NormaliseHeads(const Tensor* weight, TensorView heads);
  // result = attention of the last tokens over all tokens or the window's.
  absl::Status Attend(Cache& cache, int64_t window, const Tensor* sinks,
                      const TensorView& query, Rows result);
  // Adds sinks to the last tokens' attention.
  absl::Status AddSinks(const Tensor& sinks, TensorView log_sums,
                        TensorView output);
  absl::Status RunMlp(const LlamaLayerWeights& layer, int64_t count);
  absl::Status RunMixture(const LlamaLayerWeights& layer,
                          tensor_parallel::MoeMlp& mixture, int64_t count);
  // normed = the norm of `count` rows of hidden; without a weight, the rows.
  absl::Status Normalise(const Tensor* weight, int64_t begin, int64_t count);
  // hidden += the output projection of kAttended.
  absl::Status AddAttended(const LlamaLayerWeights& layer, int64_t count);
  // hidden += x weight^T, or the norm of x weight^T + bias if there is one.
  absl::Status AddOutput(ConstTensorView x, const Tensor& weight,
                         const Tensor* bias, const Tensor* norm, int64_t count);
  // hidden += mixed, or its norm.
  absl::Status AddMixed(const Tensor* norm, int64_t count);
  // Sets the tables for positions [first, first + count).
  absl::Status SetRotaryTables(int64_t first, int64_t count);
  // y = normed w^T for rows [begin, end) of w and `count` of normed.
  absl::Status Project(ConstTensorView weight, int64_t begin, int64_t end,
                       int64_t count, TensorView y);
  // Computes logits from rows [begin, begin + logits' rows) of hidden.
  absl::Status ComputeLogits(int64_t begin, TensorView logits);
  absl::StatusOr<std::vector<double>> LogitsOf(int64_t row);

  LlamaWeights& weights_;
  const model_files::ModelConfig& config_;
  tensor_parallel::Ops& ops_;
  const int64_t capacity_;
  const tensor_parallel::TensorGroup group_;
  tensor_parallel::TensorPool pool_;
  tensor_parallel::MoeActivations mixture_activations_;
  std::vector<std::optional<tensor_parallel::MoeMlp>> mixtures_;  // By layer.
  std::vector<Cache> caches_;
  std::map<Rows, Tensor> scratch_;
  std::optional<Tensor> inverse_;  // Of the rows, or the heads, of a batch.
  std::optional<Tensor> logits_;   // [1, vocabulary]
  int64_t length_ = 0;
  RotaryTable rotary_, local_rotary_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SAMPLE_LLAMA_DECODER_H_
