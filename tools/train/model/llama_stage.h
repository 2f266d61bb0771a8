// LlamaStage: consecutive layers of a Llama model as a stage of a pipeline.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto stage, LlamaStage::Create(groups, {.model = config,
//                                               .first_layer = 4,
//                                               .layers = 4,
//                                               .sequences = 2,
//                                               .length = 512},
//                                      tokens, weights));
//   executor = Executor::Create(pipeline_group, schedule, {{1, stage.get()}});
//
// The first stage has the embedding, the last one the head and the loss. What
// travels between stages is [tokens of this rank, hidden]: of its positions
// under context parallelism, and of its part of these under sequence
// parallelism.
//
// A micro-batch's loss is the mean over its tokens; under context parallelism
// each rank has its tokens' share, so that the sum over the context group is
// the loss. Gradients are of the loss times StageOptions::LossFactor. They add
// up over micro-batches; sums over ranks are the caller's.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_
#define TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeline/execute/stage.h"
#include "tensor_parallel/blocks/attention/attention_options.h"
#include "tensor_parallel/blocks/head/output_head.h"
#include "tensor_parallel/blocks/recompute.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/memory/tensor_pool.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/vocabulary/vocabulary_parallel_embedding.h"
#include "tools/model_files/model_config/model_config.h"
#include "tools/train/model/token_source.h"
#include "tools/train/model/weight_access.h"

namespace tessera::train {

struct LlamaStageOptions {
  model_files::ModelConfig model = {};
  int64_t first_layer = 0;
  int64_t layers = 0;
  bool is_first = true;  // Has the embedding.
  bool is_last = true;   // Has the head.
  // Of a micro-batch.
  int64_t sequences = 1;
  int64_t length = 0;
  DType dtype = DType::kF32;
  bool sequence_parallel = false;
  tensor_parallel::Recompute recompute = tensor_parallel::Recompute::kNone;
};

class LlamaStage final : public pipeline::Stage {
 public:
  // A collective of both groups. What is referred to outlives the stage.
  // Refuses what its layers refuse. Weights are zeros.
  static absl::StatusOr<std::unique_ptr<LlamaStage>> Create(
      const tensor_parallel::TensorGroup& tensor,
      const tensor_parallel::ContextGroup& context,
      const LlamaStageOptions& options, TokenSource& tokens,
      WeightAccess& weights);

  // The parameters of each window that is used at once: the embedding, each
  // layer, the head. Named as "layers.7.attention.qkv.weight".
  std::span<const std::vector<tensor_parallel::Parameter*>> windows() const {
    return windows_;
  }

  // The head's copy of a table that the first stage has; null: none.
  const tensor_parallel::Parameter* copied_table();

  // Before the first pass of a step.
  void BeginStep();

  // When the first pass of the step began, in nanoseconds of CLOCK_MONOTONIC;
  // the largest number where there was none.
  int64_t first_pass_ns() const { return first_pass_ns_; }

  // What the loss is multiplied by, for the gradients of this step.
  void SetLossFactor(double factor) { loss_factor_ = factor; }

  // Gradients that ranks of the tensor group have parts of are summed there:
  // once a step, behind the last backward.
  absl::Status FinishGradients();

  // Of activations, now and at most since the beginning of the step.
  const tensor_parallel::TensorPool& pool() const { return pool_; }

  // pipeline::Stage.
  absl::StatusOr<pipeline::TensorSpec> OutputSpec(
      const pipeline::TensorSpec* input) override;
  absl::Status Forward(const pipeline::ForwardPass& pass) override;
  absl::Status BackwardInput(const pipeline::BackwardPass& pass) override;
  absl::Status BackwardWeight(const pipeline::BackwardPass& pass) override;
  absl::Status Backward(const pipeline::BackwardPass& pass) override;
  void Release(int32_t microbatch) override;
  absl::Status ScaleGradients(double factor) override;
  absl::StatusOr<std::vector<TensorView>> Gradients() override;
  // Of the table that the first and the last stage both have: "embedding".
  absl::StatusOr<TensorView> TiedGradient(std::string_view name) override;

 private:
  using Parameters = std::vector<tensor_parallel::Parameter*>;

  // What is kept of a micro-batch.
  struct Flight {
    Flight(tensor_parallel::TensorPool& pool, size_t layers);
    std::vector<tensor_parallel::BlockActivations> layers;
    tensor_parallel::HeadActivations head;
    tensor_parallel::PooledTensor hidden;  // Where no output is given.
    std::vector<int64_t> inputs;           // Of the rank's positions.
    std::vector<int64_t> targets;
  };
  LlamaStage(const tensor_parallel::TensorGroup& tensor,
             const tensor_parallel::ContextGroup& context,
             const LlamaStageOptions& options, TokenSource& tokens,
             WeightAccess& weights);

  absl::Status CreateLayers();
  absl::Status CollectParameters();
  // Each once.
  Parameters ParametersWithGradients();
  int64_t local_tokens() const {
    return tokens_.RangeOf(tensor_.rank()).size();
  }
  absl::StatusOr<Flight*> StartFlight(int32_t microbatch);
  absl::StatusOr<Flight*> FindFlight(int32_t microbatch);
  absl::Status ReadTokens(int32_t microbatch, Flight& flight);
  absl::Status ForwardLayers(const pipeline::ForwardPass& pass, TensorView x,
                             Flight& flight);
  absl::Status ForwardHead(const pipeline::ForwardPass& pass, TensorView x,
                           Flight& flight);
  absl::Status BackwardHead(bool with_weights, TensorView x_gradient,
                            Flight& flight);
  absl::Status RunBackward(bool with_weights,
                           const pipeline::BackwardPass& pass);
  // `given`, or memory of the flight.
  absl::StatusOr<TensorView> WorkTensor(const TensorView* given,
                                        Flight& flight);
  absl::Status WithWeights(const Parameters& window,
                           absl::FunctionRef<absl::Status()> run);
  const Parameters& WindowOf(size_t layer) const {
    return windows_[layer + (embedding_ ? 1 : 0)];
  }

  const tensor_parallel::TensorGroup tensor_;
  const tensor_parallel::ContextGroup context_;
  const LlamaStageOptions options_;
  TokenSource& token_source_;
  WeightAccess& weights_;
  tensor_parallel::Partition tokens_;  // Of a micro-batch, on this rank.
  double loss_factor_ = 1;
  int64_t first_pass_ns_ = 0;

  tensor_parallel::TensorPool pool_;
  std::optional<tensor_parallel::VocabularyParallelEmbedding> embedding_;
  std::vector<std::unique_ptr<tensor_parallel::TransformerBlock>> layers_;
  std::optional<tensor_parallel::OutputHead> head_;
  std::vector<Parameters> windows_;
  std::map<int32_t, std::unique_ptr<Flight>> flights_;
  std::vector<std::unique_ptr<Flight>> free_flights_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_LLAMA_STAGE_H_
