// Converts a model's configuration into the options of its mixtures of experts.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_MIXTURE_OPTIONS_H_
#define TESSERA_TOOLS_TRAIN_MODEL_MIXTURE_OPTIONS_H_

#include <cstdint>

#include "tensor_parallel/blocks/moe_mlp.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {

// The options of a layer's mixture. Has no experts if the layer has an MLP
// instead. The caller sets the type, the parallelism, and all terms of the loss
// except the balance.
inline tensor_parallel::MoeOptions MixtureOptions(
    const model_files::ModelConfig& model, int64_t layer) {
  using tensor_parallel::RouterScore;
  const model_files::MixtureConfig& mixture = model.mixture;
  const model_files::MixtureTraits& traits = model.traits().mixture;
  if (!model.IsMixture(layer)) return {};
  return {
      .width = model.hidden,
      .experts = mixture.experts,
      .hidden = mixture.intermediate,
      .glu = model.traits().glu,
      .router = {.score = traits.sigmoid ? RouterScore::kSigmoid
                                         : RouterScore::kSoftmax,
                 .per_token = mixture.per_token,
                 .normalise = mixture.normalise,
                 .scale = mixture.scale,
                 .groups = mixture.groups,
                 .groups_per_token = mixture.groups_per_token,
                 .group_terms = mixture.groups == 1 ? 1 : traits.group_terms},
      .router_bias = traits.sigmoid,
      .biases = traits.like_gpt_oss,
      .shared_hidden = mixture.shared_intermediate,
      .balance = mixture.balance};
}

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_MIXTURE_OPTIONS_H_
