// VocabularyParallelCrossEntropy: the loss of logits of which each rank has
// some of the vocabulary, without ever gathering them.
//
//   VocabularyParallelCrossEntropy loss(group, vocabulary, DType::kF32);
//   CrossEntropyState state(pool);                    // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(loss.Forward(logits, targets, losses, state));
//   TESSERA_RETURN_IF_ERROR(loss.Backward(scales, targets, state, logits));
//
// Of each token the ranks exchange three numbers: the largest logit, then the
// sum of exponentials and the target's logit (Shoeybi et al., arXiv 1909.08053,
// section 3). Logits are [tokens, those of the rank's vocabulary], f64, f32 or
// bf16; every rank has all tokens, and the same losses. Calls are collectives.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_PARALLEL_CROSS_ENTROPY_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_PARALLEL_CROSS_ENTROPY_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// What a forward keeps for its backward, by token: the largest logit, and the
// sum of exponentials (and the target's logit), of all ranks.
struct CrossEntropyState {
  // `pool` must outlive the state.
  explicit CrossEntropyState(TensorPool& pool) : largest(pool), sums(pool) {}

  int64_t bytes() const { return largest.bytes() + sums.bytes(); }
  void Clear() {
    largest.Release();
    sums.Release();
  }

  PooledTensor largest;  // [tokens], statistics.
  PooledTensor sums;     // [2, tokens], statistics.
};

class VocabularyParallelCrossEntropy {
 public:
  // `vocabulary` is parted among the group's ranks.
  VocabularyParallelCrossEntropy(const TensorGroup& group,
                                 const Partition& vocabulary, DType dtype)
      : group_(group), vocabulary_(vocabulary), dtype_(dtype) {}

  // losses[i] = log(sum of exp(logits of token i)) - logit of targets[i].
  // InvalidArgument where a shape is wrong, or a target is not of the
  // vocabulary, or that is empty.
  absl::Status Forward(ConstTensorView logits, std::span<const int64_t> targets,
                       std::span<double> losses, CrossEntropyState& state);

  // Overwrites the logits of the forward that left `state` by the gradient of
  // the sum over i of scales[i] losses[i]; a scale of 0 leaves a token out.
  // FailedPrecondition where the state is of no such forward.
  absl::Status Backward(std::span<const double> scales,
                        std::span<const int64_t> targets,
                        const CrossEntropyState& state, TensorView logits);

 private:
  absl::Status Check(const ConstTensorView& logits,
                     std::span<const int64_t> targets, size_t numbers) const;
  absl::Status MaxOver(TensorView x) const;

  TensorGroup group_;
  Partition vocabulary_;
  DType dtype_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_VOCABULARY_PARALLEL_CROSS_ENTROPY_H_
