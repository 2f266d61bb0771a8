// FirstWeights: what a model begins with, the same on every mesh.
//
//   const FirstWeights first({.seed = 7, .deviation = 0.02});
//   TESSERA_RETURN_IF_ERROR(first.Draw(parameter, begin, elements));
//
// Norms are ones; every other element is normal with the deviation, drawn by
// the seed, its tensor's name and its place in the whole tensor. A tied head's
// are those of the embedding.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_FIRST_WEIGHTS_H_
#define TESSERA_TOOLS_TRAIN_MODEL_FIRST_WEIGHTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"

namespace tessera::train {

class FirstWeights {
 public:
  struct Options {
    uint64_t seed = 0;
    double deviation = 0;
    bool tied_embeddings = false;
  };

  explicit FirstWeights(const Options& options) : options_(options) {}

  // Sets `elements`, contiguous in host memory, to those that the parameter
  // holds from `begin` on, rounded to its type. It needs no memory of its own.
  absl::Status Draw(const tensor_parallel::Parameter& parameter, int64_t begin,
                    TensorView elements) const;

 private:
  const Options options_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_FIRST_WEIGHTS_H_
