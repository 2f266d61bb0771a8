// BlockActivations: what a transformer block keeps of a micro-batch between its
// passes. One for each micro-batch in flight; the caller owns it.
//
//   TensorPool pool;                          // one a rank
//   BlockActivations activations(pool);
//   block.Forward(1, x, y, activations);
//   activations.bytes();                      // as Recompute says
//   block.BackwardInput(dy, dx, activations);
//   block.BackwardWeight(activations);        // empty again, to be used again
//
// Memory comes from the pool, and goes back to it as soon as it is not needed.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_BLOCK_ACTIVATIONS_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_BLOCK_ACTIVATIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/attention_core.h"
#include "tensor_parallel/blocks/attention_options.h"
#include "tensor_parallel/blocks/gated_mlp.h"
#include "tensor_parallel/layers/norm_state.h"
#include "tensor_parallel/layers/tensor_pool.h"

namespace tessera::tensor_parallel {

class BlockActivations {
 public:
  // `pool` must outlive this.
  explicit BlockActivations(TensorPool& pool)
      : input_(pool),
        attention_norm_(pool),
        attention_input_(pool),
        attention_(pool),
        middle_(pool),
        mlp_norm_(pool),
        mlp_input_(pool),
        mlp_(pool),
        output_gradient_(pool),
        mlp_input_gradient_(pool),
        middle_gradient_(pool),
        attention_input_gradient_(pool) {}

  // The pass that comes next.
  enum class Stage { kForward, kBackwardInput, kBackwardWeight };
  Stage stage() const { return stage_; }

  // Held now.
  int64_t bytes() const {
    return input_.bytes() + attention_norm_.bytes() + attention_input_.bytes() +
           attention_.bytes() + middle_.bytes() + mlp_norm_.bytes() +
           mlp_input_.bytes() + mlp_.bytes() + output_gradient_.bytes() +
           mlp_input_gradient_.bytes() + middle_gradient_.bytes() +
           attention_input_gradient_.bytes();
  }

  // All that may be held between a forward and its backward, in an order that
  // stays. Whoever releases it puts it back before the backward, of the same
  // types and shapes.
  std::vector<KeptTensor> Kept() {
    return {{&input_, &input_view_},
            {&attention_norm_.mean},
            {&attention_norm_.inverse},
            {&attention_input_},
            {&attention_.query},
            {&attention_.key},
            {&attention_.value},
            {&attention_.output},
            {&attention_.log_sum_exp},
            {&middle_},
            {&mlp_norm_.mean},
            {&mlp_norm_.inverse},
            {&mlp_input_},
            {&mlp_.gate_up},
            {&mlp_.product}};
  }

  // Forgets the micro-batch, as after an error.
  void Clear() {
    ClearAllButInput();
    input_.Release();
    input_view_.reset();
    stage_ = Stage::kForward;
  }

 private:
  friend class TransformerBlock;

  void ClearAllButInput() {
    attention_norm_.Clear();
    attention_.Clear();
    mlp_norm_.Clear();
    mlp_.Clear();
    for (PooledTensor* tensor :
         {&attention_input_, &middle_, &mlp_input_, &output_gradient_,
          &mlp_input_gradient_, &middle_gradient_,
          &attention_input_gradient_}) {
      tensor->Release();
    }
    output_gradient_view_.reset();
  }

  Stage stage_ = Stage::kForward;
  TokenBatch batch_;
  PooledTensor input_;  // [tokens of the rank, width], as the next ones.
  std::optional<ConstTensorView> input_view_;  // Of it, or borrowed.
  NormState attention_norm_;
  PooledTensor attention_input_;
  AttentionActivations attention_;
  PooledTensor middle_;  // After the first residual.
  NormState mlp_norm_;
  PooledTensor mlp_input_;
  GatedMlpActivations mlp_;
  // Gradients that BackwardInput leaves.
  PooledTensor output_gradient_;
  std::optional<ConstTensorView> output_gradient_view_;  // Of it, or borrowed.
  PooledTensor mlp_input_gradient_;
  PooledTensor middle_gradient_;
  PooledTensor attention_input_gradient_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_BLOCK_ACTIVATIONS_H_
