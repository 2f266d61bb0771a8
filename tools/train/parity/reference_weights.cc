#include "tools/train/parity/reference_weights.h"

#include <cmath>
#include <cstddef>

namespace tessera::train {
namespace {

std::vector<double> Zeros(int64_t rows, int64_t columns) {
  return std::vector<double>(static_cast<size_t>(rows * columns));
}

uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

ReferenceWeights ReferenceZeros(const model_files::ModelConfig& model) {
  const int64_t queries = model.heads * model.head_size;
  const int64_t kvs = model.kv_heads * model.head_size;
  ReferenceWeights weights;
  weights.embedding = Zeros(model.vocabulary, model.hidden);
  for (int64_t l = 0; l < model.layers; ++l) {
    weights.layers.push_back({.attention_norm = Zeros(model.hidden, 1),
                              .query = Zeros(queries, model.hidden),
                              .key = Zeros(kvs, model.hidden),
                              .value = Zeros(kvs, model.hidden),
                              .output = Zeros(model.hidden, queries),
                              .mlp_norm = Zeros(model.hidden, 1),
                              .gate = Zeros(model.intermediate, model.hidden),
                              .up = Zeros(model.intermediate, model.hidden),
                              .down = Zeros(model.hidden, model.intermediate)});
  }
  weights.final_norm = Zeros(model.hidden, 1);
  if (!model.tied_embeddings) {
    weights.head = Zeros(model.vocabulary, model.hidden);
  }
  return weights;
}

std::vector<NamedWeights> TensorsOf(ReferenceWeights& weights) {
  std::vector<NamedWeights> tensors = {
      {"model.embed_tokens.weight", &weights.embedding}};
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    ReferenceLayer& layer = weights.layers[l];
    const std::string at = "model.layers." + std::to_string(l) + ".";
    tensors.insert(tensors.end(),
                   {{at + "input_layernorm.weight", &layer.attention_norm},
                    {at + "self_attn.q_proj.weight", &layer.query},
                    {at + "self_attn.k_proj.weight", &layer.key},
                    {at + "self_attn.v_proj.weight", &layer.value},
                    {at + "self_attn.o_proj.weight", &layer.output},
                    {at + "post_attention_layernorm.weight", &layer.mlp_norm},
                    {at + "mlp.gate_proj.weight", &layer.gate},
                    {at + "mlp.up_proj.weight", &layer.up},
                    {at + "mlp.down_proj.weight", &layer.down}});
  }
  tensors.push_back({"model.norm.weight", &weights.final_norm});
  if (!weights.head.empty()) {
    tensors.push_back({"lm_head.weight", &weights.head});
  }
  return tensors;
}

void FillByFormula(ReferenceWeights& weights) {
  uint64_t number = 0;
  for (const NamedWeights& tensor : TensorsOf(weights)) {
    const bool is_norm = tensor.name.ends_with("norm.weight");
    uint64_t element = number << 32;
    for (double& value : *tensor.values) {
      const double s =
          std::ldexp(static_cast<double>(SplitMix64(element) >> 11), -52) - 1;
      value = is_norm ? 1 + s / 4 : s / 2;
      ++element;
    }
    ++number;
  }
}

std::vector<int64_t> TokensByFormula(uint64_t seed, int64_t count,
                                     int64_t vocabulary) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t number = SplitMix64((seed << 32) + static_cast<uint64_t>(i));
    tokens.push_back(
        static_cast<int64_t>(number % static_cast<uint64_t>(vocabulary)));
  }
  return tokens;
}

}  // namespace tessera::train
