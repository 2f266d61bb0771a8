// LlamaWeights: all weights of a model in the memory of one rank.
#ifndef TESSERA_TOOLS_TRAIN_SAMPLE_LLAMA_WEIGHTS_H_
#define TESSERA_TOOLS_TRAIN_SAMPLE_LLAMA_WEIGHTS_H_

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor.h"
#include "tools/model_files/model_config.h"
#include "tools/train/sample/weight_reader.h"

namespace tessera::train {

// As llama_names.h has their shapes.
struct LlamaLayerWeights {
  Tensor attention_norm;
  Tensor qkv;
  Tensor attention_output;
  Tensor mlp_norm;
  Tensor gate_up;
  Tensor down;
};

class LlamaWeights {
 public:
  // As f32 or f64. Hands on what the reader refuses; InvalidArgument where the
  // type is another or the model not valid.
  static absl::StatusOr<LlamaWeights> Read(WeightReader& reader, DType dtype);

  const model_files::ModelConfig& config() const { return config_; }
  ConstTensorView embedding() const { return embedding_.view(); }
  const std::vector<LlamaLayerWeights>& layers() const { return layers_; }
  ConstTensorView norm() const { return norm_.view(); }
  // The embedding where these are tied.
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

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SAMPLE_LLAMA_WEIGHTS_H_
