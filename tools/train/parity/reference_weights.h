// ReferenceWeights: all weights of a Llama model, in float64.
//
//   ReferenceWeights weights = ReferenceZeros(model);
//   FillByFormula(weights);
//   for (const NamedWeights& tensor : TensorsOf(weights)) {
//     // tensor.name is "model.layers.0.self_attn.q_proj.weight"
//   }
#ifndef TESSERA_TOOLS_TRAIN_PARITY_REFERENCE_WEIGHTS_H_
#define TESSERA_TOOLS_TRAIN_PARITY_REFERENCE_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/model_files/model_config.h"

namespace tessera::train {

// Matrices are row by row, of [outputs, inputs].
struct ReferenceLayer {
  std::vector<double> attention_norm, query, key, value, output;
  std::vector<double> mlp_norm, gate, up, down;
};

struct ReferenceWeights {
  std::vector<double> embedding;
  std::vector<ReferenceLayer> layers;
  std::vector<double> final_norm;
  std::vector<double> head;  // Empty where it is the embedding.
};

// The sizes that the model asks for.
ReferenceWeights ReferenceZeros(const model_files::ModelConfig& model);

// Not owned; by the names of Hugging Face's Llama.
struct NamedWeights {
  std::string name;
  std::vector<double>* values;
};

// The embedding, the layers in order (norm, q, k, v, o, norm, gate, up, down),
// the final norm, the head where there is one.
std::vector<NamedWeights> TensorsOf(ReferenceWeights& weights);

// What a program in any language computes to the last bit. Element j of tensor
// number i of TensorsOf has s = 2 u - 1, where u is the first 53 bits of
// SplitMix64 of i 2^32 + j, as a part of 1; norms are 1 + s / 4, all others
// s / 2. (Steele, Lea and Flood, Fast splittable pseudorandom number
// generators, OOPSLA 2014, figure 16.)
void FillByFormula(ReferenceWeights& weights);

// `count` tokens below `vocabulary`: token i is SplitMix64 of `seed` 2^32 + i,
// modulo the vocabulary.
std::vector<int64_t> TokensByFormula(uint64_t seed, int64_t count,
                                     int64_t vocabulary);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_REFERENCE_WEIGHTS_H_
