// The loss: cross-entropy of logits whose vocabulary is divided among the ranks
// of a tensor group (VocabularyParallelCrossEntropy).
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_CROSS_ENTROPY_LOSS_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_CROSS_ENTROPY_LOSS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// The state that a forward keeps for its backward: per token, over all ranks,
// the largest logit, the sum of exponentials and the target's logit.
struct CrossEntropyState : TensorParts<CrossEntropyState> {
  // `pool` must outlive the state.
  explicit CrossEntropyState(TensorPool& pool) : largest(pool), sums(pool) {}

  auto parts() { return std::tie(largest, sums); }

  PooledTensor largest;  // [tokens], statistics.
  PooledTensor sums;     // [2, tokens], statistics.
};

// The cross-entropy of logits of which each rank has a part of the vocabulary.
// It never gathers the logits.
//
//   VocabularyParallelCrossEntropy loss(group, vocabulary, DType::kF32);
//   CrossEntropyState state(pool);                    // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(loss.Forward(logits, targets, losses, state));
//   TESSERA_RETURN_IF_ERROR(loss.Backward(scales, targets, state, logits));
//
// For each token the ranks exchange three numbers: the largest logit, then the
// sum of exponentials and the target's logit (Shoeybi et al., arXiv 1909.08053,
// section 3). Logits are [tokens, the rank's part of the vocabulary], f64, f32,
// bf16 or f16; every rank has all tokens and gets the same losses. Targets are
// i64 [tokens], losses and scales f64 [tokens], all on the device and
// contiguous. Calls are collectives.
class VocabularyParallelCrossEntropy {
 public:
  // `vocabulary` is the partition over the group's ranks; its size also becomes
  // terms.vocabulary. If `cap` is not 0, op::SoftCap has capped the logits, and
  // Backward sets the gradient of its input.
  VocabularyParallelCrossEntropy(const TensorGroup& group,
                                 const Partition& vocabulary, DType dtype,
                                 const LossTerms& terms = {}, double cap = 0)
      : group_(group),
        vocabulary_(vocabulary),
        dtype_(dtype),
        terms_(terms),
        cap_(cap) {
    terms_.vocabulary = vocabulary.size();
  }

  // losses[i] = log(sum of exp(logits of token i)) - logit of targets[i],
  // without the terms; 0 for kNoTarget. Precondition: other targets are in the
  // vocabulary, which the code that uploads them must check. InvalidArgument if
  // a shape or type is wrong.
  absl::Status Forward(ConstTensorView logits, ConstTensorView targets,
                       TensorView losses, CrossEntropyState& state);

  // Overwrites the logits of the forward that set `state` with the gradient of
  // the sum over i of scales[i] * losses[i], including the terms, which need no
  // additional communication. A scale of 0 or the target kNoTarget excludes a
  // token. InvalidArgument for invalid terms (op::CrossEntropyGradient).
  // FailedPrecondition if `state` does not belong to such a forward.
  absl::Status Backward(ConstTensorView scales, ConstTensorView targets,
                        const CrossEntropyState& state, TensorView logits);

 private:
  absl::Status Check(const ConstTensorView& logits,
                     const ConstTensorView& targets,
                     const ConstTensorView& numbers) const;
  absl::Status MaxOver(TensorView x) const;

  TensorGroup group_;
  Partition vocabulary_;
  DType dtype_;
  LossTerms terms_;
  double cap_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_CROSS_ENTROPY_LOSS_H_
