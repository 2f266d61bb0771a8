// A reference for tests: the forward and backward of a Llama-family model in
// plain float64 loops. It is written from the papers, formula by formula, and
// shares no code with the trainer.
//
//   ReferenceWeights weights = ReferenceZeros(model);
//   FillByFormula(weights);
//   ReferencePass pass = RunReference(model, weights, {tokens, 2, 7});
//   pass.loss;  // also pass.logits, pass.gradients.layers[0].query
//
// Sources: Touvron et al., LLaMA, arXiv 2302.13971, section 2.2; Zhang and
// Sennrich, RMSNorm, arXiv 1910.07467, equation 4; Su et al., RoFormer, arXiv
// 2104.09864, section 3.2, with the pairs (j, j + d/2) of Hugging Face's
// weights; Chen et al., arXiv 2306.15595, and transformers' modeling_rope_utils
// for its scaling; Ainslie et al., GQA, arXiv 2305.13245; Vaswani et al., arXiv
// 1706.03762, equation 1; Shazeer, GLU variants, arXiv 2002.05202, equation 6;
// Hendrycks and Gimpel, GELU, arXiv 1606.08415, section 2; Gemma, 2403.08295;
// for mixtures of experts Jiang et al., arXiv 2401.04088, section 2.1;
// DeepSeek-V3, arXiv 2412.19437, equations 1 to 20; ST-MoE, arXiv 2202.08906,
// equation 5; for long sequences Peng et al., YaRN, arXiv 2309.00071; for caps
// Gemma 2, arXiv 2408.00118, section 2; for norms of outputs OLMo 2, arXiv
// 2501.00656, section 3; for sinks, clamps and biases of experts OpenAI,
// gpt-oss, arXiv 2508.10925, section 2.
#ifndef TESSERA_TOOLS_TRAIN_PARITY_TESTING_REFERENCE_LLAMA_H_
#define TESSERA_TOOLS_TRAIN_PARITY_TESTING_REFERENCE_LLAMA_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/model_files/model_config.h"

namespace tessera::train {

// Returns d f() / d x[i] for every i, by central differences of fourth order,
// accurate to about 1e-10. Restores x.
template <typename Function>
std::vector<double> FiniteDifferences(Function f, std::span<double> x,
                                      double step = 2e-4) {
  std::vector<double> derivatives;
  for (double& value : x) {
    const double middle = value;
    const auto at = [&](double offset) {
      value = middle + offset;
      return f();
    };
    const double near = at(step) - at(-step);
    const double far = at(2 * step) - at(-2 * step);
    value = middle;
    derivatives.push_back((8 * near - far) / (12 * step));
  }
  return derivatives;
}

// The largest absolute difference, relative to the largest magnitude in
// `expected` or to `least`, whichever is larger. Infinite if the sizes differ,
// a number is infinite or NaN, or `expected` is all zeros and `actual` is not.
inline double RelativeDifference(const std::vector<double>& actual,
                                 const std::vector<double>& expected,
                                 double least = 0) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return kInfinity;
  double difference = 0, largest = least;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = std::abs(actual[i] - expected[i]);
    if (!std::isfinite(d)) return kInfinity;
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return difference == 0 ? 0 : difference / largest;
}

// Matrices are [outputs, inputs], row by row.
// An MLP.
struct ReferenceExpert {
  std::vector<double> gate = {}, up = {}, down = {};
  // Empty if the model has none.
  std::vector<double> gate_bias = {}, up_bias = {}, down_bias = {};
};

struct ReferenceLayer {
  std::vector<double> attention_norm = {}, query = {}, key = {}, value = {},
                      output = {};
  std::vector<double> mlp_norm = {};
  ReferenceExpert mlp = {};
  // Empty if the model has no biases.
  std::vector<double> query_bias = {}, key_bias = {}, value_bias = {};
  std::vector<double> output_bias = {};
  std::vector<double> query_norm = {}, key_norm = {};
  std::vector<double> sinks = {};  // By head; empty if the model has none.
  // Latent attention has these in place of `key` and `value`; the input of
  // `query` is then the latent vector of queries, if there is one.
  std::vector<double> query_down = {}, kv_down = {}, kv_up = {};
  std::vector<double> attention_output_norm = {}, mlp_output_norm = {};
  // For a mixture of experts, instead of the MLP.
  // router_bias affects only the choice, router_logit_bias the logits.
  std::vector<double> router = {}, router_bias = {}, router_logit_bias = {};
  std::vector<ReferenceExpert> experts = {};
  ReferenceExpert shared = {};
};

struct ReferenceWeights {
  std::vector<double> embedding;
  std::vector<ReferenceLayer> layers;
  std::vector<double> final_norm;
  std::vector<double> head;  // Empty if it is tied to the embedding.
};

// Weights of the model's sizes, all zeros.
ReferenceWeights ReferenceZeros(const model_files::ModelConfig& model);

// Weights with their name in Hugging Face's Llama, such as
// "model.layers.0.self_attn.q_proj.weight". Not owned.
struct NamedWeights {
  std::string name;
  std::vector<double>* values;
};

// Lists the embedding, the layers in order (norm, q, k, v, o, norm, gate, up,
// down), the final norm, and the head unless it is tied. A bias follows its
// weight, sinks the output's bias, and the norm of an output the output's
// weight. In mixtures of experts the router, its bias, the experts in order and
// the shared expert follow the second norm.
std::vector<NamedWeights> TensorsOf(ReferenceWeights& weights);

// Sets values that a program in any language can reproduce to the last bit.
// With u the first 53 bits of SplitMix64(i 2^32 + j) as a fraction of 1, and
// s = 2 u - 1, element j of tensor i of TensorsOf is 1 + s / 4 for norms and
// s / 2 for all others. (Steele, Lea and Flood, Fast splittable pseudorandom
// number generators, OOPSLA 2014, figure 16.)
void FillByFormula(ReferenceWeights& weights);

// `count` tokens below `vocabulary`: token i is SplitMix64 of `seed` 2^32 + i,
// modulo the vocabulary.
std::vector<int64_t> TokensByFormula(uint64_t seed, int64_t count,
                                     int64_t vocabulary);

// A batch of [sequences, length + 1] tokens below the vocabulary size: the
// inputs, and the targets shifted by one.
struct ReferenceBatch {
  std::span<const int64_t> tokens;
  size_t sequences = 1;
  size_t length = 0;
  // tensor_parallel::LossTerms, which affect only the gradients.
  double label_smoothing = 0;
  double z_loss = 0;
  // The token that ends a document. If set, tokens attend only to their own
  // document; otherwise to all earlier tokens.
  std::optional<int64_t> document_end = {};
  // tensor_parallel::MoeOptions, which affect only the gradients.
  double balance = 0;
  double router_z_loss = 0;
  // By token: true excludes its target from the loss and from the terms of the
  // head. Empty: no target is excluded.
  std::vector<bool> masked = {};
};

struct ReferencePass {
  std::vector<double> logits;  // [sequences, length, vocabulary]
  // The mean of -log of the probability over all tokens with a target; 0 if
  // there are none.
  double loss = 0;
  // The largest score of a query and a key, [layers, heads].
  std::vector<double> max_scores;
  ReferenceWeights gradients;  // Gradients of ReferenceLoss.
};

ReferencePass RunReference(const model_files::ModelConfig& model,
                           const ReferenceWeights& weights,
                           const ReferenceBatch& batch);

// Returns only the loss, including the terms of the batch.
double ReferenceLoss(const model_files::ModelConfig& model,
                     const ReferenceWeights& weights,
                     const ReferenceBatch& batch);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_TESTING_REFERENCE_LLAMA_H_
