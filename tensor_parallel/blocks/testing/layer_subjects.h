// Subjects of gradient tests: layers.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_LAYER_SUBJECTS_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_LAYER_SUBJECTS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/attention.h"
#include "tensor_parallel/blocks/moe_mlp.h"
#include "tensor_parallel/blocks/testing/subject.h"
#include "tensor_parallel/layers/norm.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/layers/vocabulary.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::subject_internal {

// The groups, sizes and types that a subject is created with.
struct Setting {
  TensorGroup tensor;
  ContextGroup context;
  SubjectOptions options;
  TensorPool* pool;

  Partition TokensOf(int64_t sequences) const {
    const int64_t positions =
        context.layout.SizeOf(context.group.rank()) * sequences;
    return *Partition::Balanced(positions, tensor.size());
  }
  // The word of each token, a function of its position in the whole sequence
  // and therefore the same on every mesh.
  std::vector<int64_t> WordsOf(int64_t sequences) const {
    std::vector<int64_t> words;
    for (int64_t s = 0; s < sequences; ++s) {
      for (const int64_t p : context.layout.PositionsOf(context.group.rank())) {
        words.push_back((s * 5 + p * p + 3) % options.vocabulary);
      }
    }
    return words;
  }
  // The words on the device of the tensor group.
  absl::StatusOr<Tensor> UploadWords(int64_t sequences) const {
    const std::vector<int64_t> words = WordsOf(sequences);
    return ToDevice(tensor.queue(), ListOf(words));
  }
  // A copy of `x` on that device.
  absl::StatusOr<Tensor> CopyOf(ConstTensorView x) const {
    TESSERA_ASSIGN_OR_RETURN(
        Tensor copy,
        Tensor::Create(x.dtype(),
                       std::vector<int64_t>(x.shape().begin(), x.shape().end()),
                       tensor.memory()));
    TESSERA_RETURN_IF_ERROR(tensor.ops().Run(op::Copy{x, copy.view()}));
    return copy;
  }
  NormOptions norm() const {
    return {.width = options.width, .epsilon = 1e-3, .dtype = options.dtype};
  }
  AttentionOptions attention() const {
    return {.width = options.width,
            .heads = options.heads,
            .kv_heads = options.kv_heads,
            .head_size = options.head_size,
            .rotary = RotaryFrequencies{.base = 100},
            .qkv_bias = options.bias,
            .output_bias = options.bias,
            .qk_norm = options.qk_norm,
            .norm_epsilon = 1e-3,
            .sinks = options.like_gpt_oss,
            .window = options.window,
            .dtype = options.dtype};
  }
  LoraOptions lora() const { return {.rank = options.lora_rank, .alpha = 3}; }
  AttentionOptions latent_attention() const {
    AttentionOptions attention = this->attention();
    attention.kv_heads = attention.heads;
    attention.head_size = 7;
    attention.qkv_bias = attention.output_bias = attention.qk_norm = false;
    attention.latent = {.query_rank = options.query_rank,
                        .kv_rank = 5,
                        .nope = 3,
                        .rope = 4,
                        .value = options.query_rank > 0 ? 5 : 7,
                        .interleaved = options.query_rank > 0,
                        .norm_epsilon = 1e-3};
    attention.lora = lora();
    return attention;
  }
  MoeOptions moe() const {
    const bool sigmoid = options.score == RouterScore::kSigmoid;
    return {
        .width = options.width,
        .experts = 8,
        .hidden = options.hidden,
        .glu = options.like_gpt_oss ? GluKind::kClampedGlu : GluKind::kSwiGlu,
        .router = {.score = options.score,
                   .per_token = 3,
                   .normalise = !sigmoid,
                   .scale = sigmoid ? 1.5 : 1},
        .biases = options.like_gpt_oss,
        .shared_hidden = sigmoid ? options.hidden + 1 : 0,
        .balance = options.balance ? 0.3 : 0,
        .z_loss = options.balance ? 0.05 : 0,
        .capacity = options.capacity,
        .padded = options.padded,
        .dtype = options.dtype,
        .lora = lora()};
  }
};

// Keeps copies of x and of the gradient of y, for layers that do not keep them.
class LayerSubject : public Subject {
 public:
  explicit LayerSubject(const Setting& setting) : setting_(setting) {}

  int64_t out_width() const override { return setting_.options.width; }
  DType out_dtype() const override { return setting_.options.dtype; }

  absl::Status Forward(int64_t sequences, ConstTensorView x,
                       TensorView y) override {
    tokens_ = setting_.TokensOf(sequences);
    sequences_ = sequences;
    TESSERA_RETURN_IF_ERROR(setting_.tensor.queue().Synchronize());
    TESSERA_ASSIGN_OR_RETURN(x_, setting_.CopyOf(x));
    return DoForward(y);
  }
  absl::Status BackwardInput(ConstTensorView gradient,
                             TensorView x_gradient) override {
    TESSERA_RETURN_IF_ERROR(setting_.tensor.queue().Synchronize());
    TESSERA_ASSIGN_OR_RETURN(gradient_, setting_.CopyOf(gradient));
    return DoBackwardInput(x_gradient);
  }
  absl::Status Backward(ConstTensorView gradient,
                        TensorView x_gradient) override {
    TESSERA_RETURN_IF_ERROR(BackwardInput(gradient, x_gradient));
    return BackwardWeight();
  }

 protected:
  virtual absl::Status DoForward(TensorView y) = 0;
  virtual absl::Status DoBackwardInput(TensorView x_gradient) = 0;

  ConstTensorView x() const { return x_->view(); }
  ConstTensorView gradient() const { return gradient_->view(); }

  Setting setting_;
  Partition tokens_;
  int64_t sequences_ = 0;

 private:
  std::optional<Tensor> x_;
  std::optional<Tensor> gradient_;
};

template <typename Layer>
class LinearSubject final : public LayerSubject {
 public:
  LinearSubject(const Setting& setting, Layer layer)
      : LayerSubject(setting), layer_(std::move(layer)) {}
  void AppendParameters(std::vector<Parameter*>& parameters) override {
    layer_.weights().AppendParameters("linear", parameters);
  }
  absl::Status DoForward(TensorView y) override {
    return layer_.Forward(tokens_, x(), y);
  }
  absl::Status DoBackwardInput(TensorView x_gradient) override {
    return layer_.BackwardInput(tokens_, gradient(), x_gradient);
  }
  absl::Status BackwardWeight() override {
    return layer_.BackwardWeight(tokens_, gradient(), x());
  }
  absl::Status FinishGradients() override { return layer_.FinishGradients(); }

 private:
  Layer layer_;
};

class NormSubject final : public LayerSubject {
 public:
  NormSubject(const Setting& setting, RmsNorm norm)
      : LayerSubject(setting), norm_(std::move(norm)), state_(*setting.pool) {}
  void AppendParameters(std::vector<Parameter*>& parameters) override {
    norm_.AppendParameters("norm", parameters);
  }
  absl::Status DoForward(TensorView y) override {
    return norm_.Forward(x(), y, state_);
  }
  absl::Status DoBackwardInput(TensorView x_gradient) override {
    return norm_.BackwardInput(gradient(), x(), state_, x_gradient);
  }
  absl::Status BackwardWeight() override {
    return norm_.BackwardWeight(gradient(), x(), state_);
  }
  absl::Status FinishGradients() override { return norm_.FinishGradients(); }

 private:
  RmsNorm norm_;
  NormState state_;
};

// Ignores x, whose gradient is zero.
class EmbeddingSubject final : public LayerSubject {
 public:
  EmbeddingSubject(const Setting& setting, VocabularyParallelEmbedding layer)
      : LayerSubject(setting), layer_(std::move(layer)) {}
  void AppendParameters(std::vector<Parameter*>& parameters) override {
    layer_.AppendParameters("embedding", parameters);
  }
  absl::Status DoForward(TensorView y) override {
    TESSERA_RETURN_IF_ERROR(setting_.tensor.queue().Synchronize());
    TESSERA_ASSIGN_OR_RETURN(words_, setting_.UploadWords(sequences_));
    return layer_.Forward(tokens_, words_->view(), y);
  }
  absl::Status DoBackwardInput(TensorView x_gradient) override {
    return setting_.tensor.ops().Run(op::Fill{0, x_gradient});
  }
  absl::Status BackwardWeight() override {
    return layer_.BackwardWeight(tokens_, words_->view(), gradient());
  }
  absl::Status FinishGradients() override { return absl::OkStatus(); }

 private:
  VocabularyParallelEmbedding layer_;
  std::optional<Tensor> words_;
};

}  // namespace tessera::tensor_parallel::subject_internal

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_LAYER_SUBJECTS_H_
