// FirstWeights: what a model begins with, the same on every mesh.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_FIRST_WEIGHTS_H_
#define TESSERA_TOOLS_TRAIN_MODEL_FIRST_WEIGHTS_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "tensor_parallel/layers/parameter.h"

namespace tessera::train {

// Norms are ones; every other element is normal with this deviation, drawn by
// the seed, its tensor's name and its place in the whole tensor. A tied head's
// are those of the embedding.
absl::Status SetFirstWeights(
    std::span<tensor_parallel::Parameter* const> parameters, uint64_t seed,
    double deviation, bool tied_embeddings);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_FIRST_WEIGHTS_H_
