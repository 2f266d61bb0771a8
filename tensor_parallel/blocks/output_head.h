// OutputHead: the last layers of a model: final norm, projection to the
// vocabulary, and cross-entropy, over ranks that share the vocabulary.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_OUTPUT_HEAD_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_OUTPUT_HEAD_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/cross_entropy_loss.h"
#include "tensor_parallel/layers/norm.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/layers/vocabulary.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

struct OutputHeadOptions {
  int64_t width = 0;
  int64_t vocabulary = 0;
  double norm_epsilon = 1e-5;
  double cap = 0;  // Of the logits (op::SoftCap); 0: none.
  DType dtype = DType::kF32;
  // kSelective is the same as kNone. kFull does not keep the logits.
  Recompute recompute = Recompute::kNone;
  LossTerms terms = {};  // For gradients, not losses; `vocabulary` unset.
  // The caller keeps x unchanged until the micro-batch's last backward, so that
  // it is not copied.
  bool borrows_tensors = false;
};

// The activations of a micro-batch that are kept from forward to backward, like
// BlockActivations.
class HeadActivations : private TensorParts<HeadActivations> {
 public:
  explicit HeadActivations(TensorPool& pool)
      : input_(pool),
        norm_(pool),
        normalised_(pool),
        logits_(pool),
        loss_(pool),
        normalised_gradient_(pool) {}

  enum class Stage { kForward, kBackwardInput, kBackwardWeight };
  Stage stage() const { return stage_; }

  using TensorParts::bytes;  // Of the tensors held now.
  // Like BlockActivations::Kept.
  std::vector<KeptTensor> Kept() {
    return {{&input_, &input_view_}, {&norm_.inverse},
            {&normalised_},          {&logits_},
            {&loss_.largest},        {&loss_.sums}};
  }
  void Clear() {
    TensorParts::Clear();
    input_view_.reset();
    targets_.reset();
    stage_ = Stage::kForward;
  }

 private:
  friend class OutputHead;
  friend class TensorParts<HeadActivations>;

  auto parts() {
    return std::tie(input_, norm_, normalised_, logits_, loss_,
                    normalised_gradient_);
  }

  Stage stage_ = Stage::kForward;
  Partition tokens_;
  std::optional<ConstTensorView> targets_;  // The caller's.
  PooledTensor input_;
  // A view of the tensor above, or of a borrowed one.
  std::optional<ConstTensorView> input_view_;
  NormState norm_;
  PooledTensor normalised_;
  PooledTensor logits_;  // Later overwritten with their gradient.
  CrossEntropyState loss_;
  PooledTensor normalised_gradient_;
};

// Logits are never gathered.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto head, OutputHead::Create(group, {.width = 512,
//                                             .vocabulary = 32000}));
//   HeadActivations activations(pool);               // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(head.Forward(tokens, x, targets, losses,
//                                        activations));
//   TESSERA_RETURN_IF_ERROR(head.BackwardInput(scales, dx, activations));
//   TESSERA_RETURN_IF_ERROR(head.BackwardWeight(activations));
//   TESSERA_RETURN_IF_ERROR(head.FinishGradients());  // once a step
//
// If the head is tied to an embedding on the same rank, both share one
// parameter. If they are on different pipeline stages, each has its own table
// with the same rows: sum the two gradients before the step
// (layers/vocabulary.h).
//
// x and dx are [tokens, width], the same on every rank; under sequence
// parallelism they have only the rank's tokens. Targets (i64), losses and
// scales (f64) are [tokens], of all `tokens`, the same on every rank; targets
// must not change until the micro-batch's last backward. Weights: "norm.weight"
// (model.norm of Hugging Face's Llama) and "output.weight" (lm_head). Calls are
// collectives, one at a time. After an error, clear the activations.
class OutputHead {
 public:
  // `tied` is the embedding's table, which is not owned; it must outlive this
  // object and must not move. Null: the head has its own table. Errors as for
  // its layers.
  static absl::StatusOr<OutputHead> Create(const TensorGroup& group,
                                           const OutputHeadOptions& options,
                                           Parameter* tied = nullptr);

  RmsNorm& norm() { return norm_; }
  VocabularyParallelProjection& projection() { return projection_; }
  Parameter& table() { return projection_.table(); }

  // Omits the table if it belongs to the embedding. The pointers are valid
  // until the head is moved or destroyed.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  // losses[i] = -log of the probability of targets[i], 0 for kNoTarget.
  // `tokens` gives the number of tokens, and their partition under sequence
  // parallelism.
  absl::Status Forward(const Partition& tokens, ConstTensorView x,
                       ConstTensorView targets, TensorView losses,
                       HeadActivations& activations);
  // Computes the gradient of the sum over i of scales[i] * losses[i], with the
  // terms of the options; a scale of 0 or the target kNoTarget excludes a
  // token.
  absl::Status BackwardInput(ConstTensorView scales, TensorView x_gradient,
                             HeadActivations& activations);
  // Adds to the gradients of the weights.
  absl::Status BackwardWeight(HeadActivations& activations);
  // Both passes; overlaps the computation of weight gradients with the
  // communication of input gradients.
  absl::Status Backward(ConstTensorView scales, TensorView x_gradient,
                        HeadActivations& activations);

  absl::Status FinishGradients() { return norm_.FinishGradients(); }

 private:
  OutputHead(const TensorGroup& group, const OutputHeadOptions& options,
             RmsNorm norm, VocabularyParallelProjection projection)
      : group_(group),
        options_(options),
        norm_(std::move(norm)),
        projection_(std::move(projection)),
        loss_(group, projection_.vocabulary(), options.dtype, options.terms,
              options.cap) {}

  absl::StatusOr<TensorView> Reserve(const Partition& tokens,
                                     PooledTensor& memory) const;
  absl::Status ComputeLogits(HeadActivations& activations);
  absl::Status StartBackward(ConstTensorView scales,
                             HeadActivations& activations);

  TensorGroup group_;
  OutputHeadOptions options_;
  RmsNorm norm_;
  VocabularyParallelProjection projection_;
  VocabularyParallelCrossEntropy loss_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_OUTPUT_HEAD_H_
