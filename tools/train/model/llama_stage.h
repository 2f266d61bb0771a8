// LlamaStage: a window of LlamaLayers (the embedding, a transformer block or
// the head) as a stage of a pipeline.
//
//   LlamaPasses passes(tokens, weights);
//   for (size_t window = 0; window < layers->windows().size(); ++window) {
//     stages.push_back(MakeLlamaStage(*layers, window, passes));
//   }
//
// What travels between stages is [tokens of this rank, hidden]: those of its
// positions under context parallelism, and of its part of these under sequence
// parallelism. Stages refer to the tensors that the executor holds, and copy
// none.
//
// A micro-batch's loss is the mean over its tokens; under context parallelism
// each rank has its tokens' share, so that the sum over the context group is
// the loss. Gradients are of the loss times LlamaPasses::loss_factor. They add
// up over micro-batches.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_
#define TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/memory.h"
#include "pipeline/execute/stage.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tools/train/model/activation_store.h"
#include "tools/train/model/llama_layers.h"
#include "tools/train/model/token_source.h"
#include "tools/train/model/weight_access.h"

namespace tessera::train {

// What the stages of a rank have in common. The references outlive it.
struct LlamaPasses {
  static constexpr int64_t kNever = INT64_MAX;

  // Activations are in memory of `memory`, and with `store` away between a
  // forward and its backward. What embeddings keep, their tokens, stays.
  LlamaPasses(TokenSource& tokens, WeightAccess& weights,
              std::shared_ptr<MemoryResource> memory = HostMemory(),
              ActivationStore* store = nullptr)
      : tokens(tokens),
        weights(weights),
        store(store),
        pool(std::move(memory)) {}

  // Before the first pass of a step.
  void BeginStep() {
    first_pass_ns = kNever;
    pool.ResetPeak();
  }

  TokenSource& tokens;
  WeightAccess& weights;
  ActivationStore* const store;      // Null: activations stay.
  tensor_parallel::TensorPool pool;  // Of activations.
  // What the loss is multiplied by, for the gradients of this step.
  double loss_factor = 1;
  // When the first forward of the step began, in nanoseconds of
  // CLOCK_MONOTONIC; kNever if there was none.
  int64_t first_pass_ns = kNever;
};

// `layers` and `passes` outlive the stage.
std::unique_ptr<pipeline::Stage> MakeLlamaStage(LlamaLayers& layers,
                                                size_t window,
                                                LlamaPasses& passes);

// What travels between any two stages.
pipeline::TensorSpec BoundaryOf(const LlamaLayers& layers);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_
