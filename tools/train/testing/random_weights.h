// Synthetic weights for tests.
#ifndef TESSERA_TOOLS_TRAIN_TESTING_RANDOM_WEIGHTS_H_
#define TESSERA_TOOLS_TRAIN_TESTING_RANDOM_WEIGHTS_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensor_parallel/random/philox.h"
#include "tools/train/sample/llama_decoder.h"

namespace tessera::train {

inline model_files::ModelConfig SmallModel() {
  model_files::ModelConfig config = {.vocabulary = 264,
                                     .hidden = 24,
                                     .intermediate = 40,
                                     .layers = 3,
                                     .heads = 6,
                                     .kv_heads = 2,
                                     .head_size = 4};
  config.max_positions = 64;
  return config;
}

// Normally distributed weights around 0, or around 1 for norms.
class RandomWeights : public WeightReader {
 public:
  explicit RandomWeights(const model_files::ModelConfig& config)
      : config_(config) {}

  const model_files::ModelConfig& config() const override { return config_; }
  absl::Status Read(model_files::LlamaPart part, int64_t layer,
                    int64_t row_begin, int64_t row_end,
                    std::span<float> target) override {
    const auto shape =
        model_files::MakeLlamaParameter(config_, part, layer).shape;
    const int64_t width = shape.size() == 2 ? shape[1] : 1;
    if (row_begin < 0 || row_end > shape[0] ||
        static_cast<int64_t>(target.size()) != (row_end - row_begin) * width) {
      return absl::InvalidArgumentError("no such rows");
    }
    const tensor_parallel::Philox random(
        {.seed = 5,
         .stream = static_cast<uint64_t>(part) * 1000 +
                   static_cast<uint64_t>(layer + 1)});
    random.FillNormal(static_cast<uint64_t>(row_begin * width), target);
    for (float& value : target) {
      value = 0.3F * value + (shape.size() == 1 ? 1.0F : 0.0F);
    }
    return absl::OkStatus();
  }

 private:
  const model_files::ModelConfig config_;
};

// A model whose logit of token i is always a positive multiple of values[i].
class FixedLogits : public WeightReader {
 public:
  explicit FixedLogits(std::vector<float> values)
      : config_(SmallModel()), values_(std::move(values)) {}

  const model_files::ModelConfig& config() const override { return config_; }
  absl::Status Read(model_files::LlamaPart part, int64_t, int64_t row_begin,
                    int64_t, std::span<float> target) override {
    const bool adds_nothing = part == model_files::LlamaPart::kDown ||
                              part == model_files::LlamaPart::kAttentionOutput;
    for (size_t i = 0; i < target.size(); ++i) {
      const size_t row = static_cast<size_t>(row_begin) +
                         i / static_cast<size_t>(config_.hidden);
      target[i] = part == model_files::LlamaPart::kHead ? values_[row]
                  : adds_nothing                        ? 0.0F
                                                        : 1.0F;
    }
    return absl::OkStatus();
  }

 private:
  const model_files::ModelConfig config_;
  const std::vector<float> values_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_TESTING_RANDOM_WEIGHTS_H_
