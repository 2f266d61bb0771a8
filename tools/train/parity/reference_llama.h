// RunReference: a Llama model forward and backward in plain float64 loops, to
// measure others by. It is written from the papers, formula by formula, and
// shares no code with what trains.
//
//   ReferenceWeights weights = ReferenceZeros(model);
//   FillByFormula(weights);
//   ReferencePass pass = RunReference(model, weights, {tokens, 2, 7});
//   pass.loss, pass.logits, pass.gradients.layers[0].query
//
// Sources: Touvron et al., LLaMA, arXiv 2302.13971, section 2.2; Zhang and
// Sennrich, RMSNorm, arXiv 1910.07467, equation 4; Su et al., RoFormer, arXiv
// 2104.09864, section 3.2, with the pairs (j, j + d/2) that Hugging Face's
// weights are for; Ainslie et al., GQA, arXiv 2305.13245; Vaswani et al., arXiv
// 1706.03762, equation 1; Shazeer, GLU variants, arXiv 2002.05202, equation 6.
#ifndef TESSERA_TOOLS_TRAIN_PARITY_REFERENCE_LLAMA_H_
#define TESSERA_TOOLS_TRAIN_PARITY_REFERENCE_LLAMA_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/model_files/model_config.h"
#include "tools/train/parity/reference_weights.h"

namespace tessera::train {

// [sequences, length + 1] tokens below the vocabulary: inputs, and shifted by
// one the targets.
struct ReferenceBatch {
  std::span<const int64_t> tokens;
  size_t sequences = 1;
  size_t length = 0;
};

struct ReferencePass {
  std::vector<double> logits;  // [sequences, length, vocabulary]
  double loss = 0;  // The mean over all tokens of -log of the probability.
  ReferenceWeights gradients;  // Of the loss.
};

ReferencePass RunReference(const model_files::ModelConfig& model,
                           const ReferenceWeights& weights,
                           const ReferenceBatch& batch);

// The loss alone.
double ReferenceLoss(const model_files::ModelConfig& model,
                     const ReferenceWeights& weights,
                     const ReferenceBatch& batch);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_REFERENCE_LLAMA_H_
