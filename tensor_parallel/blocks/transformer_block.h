// TransformerBlock: a block of a Llama-like model, m = x + attention(norm(x)),
// y = m + mlp(norm(m)), over a tensor group and a context group.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto block, TransformerBlock::Create(
//           tensor_group, {context_group, layout},
//           {.attention = {.width = 512, .heads = 8, .kv_heads = 2,
//                          .head_size = 64},
//            .hidden = 1376,
//            .recompute = Recompute::kSelective}));
//   BlockActivations activations(pool);              // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(block.Forward(sequences, x, y, activations));
//   TESSERA_RETURN_IF_ERROR(block.BackwardInput(dy, dx, activations));
//   TESSERA_RETURN_IF_ERROR(block.BackwardWeight(activations));
//   TESSERA_RETURN_IF_ERROR(block.FinishGradients());  // once a step
//
// Tokens are those of blocks/attention.h; x, y, dy and dx are [tokens, width]
// of one dtype, contiguous: all tokens of the rank's positions, the same on
// every rank of the tensor group, or under sequence parallelism those of
// BatchOf(sequences).tokens.RangeOf(rank). y may be x, and dx may be dy: what
// the backward needs of them is copied to the activations, unless the block
// borrows them (TransformerBlockOptions). BackwardInput may be any number of
// other passes before BackwardWeight (arXiv 2401.10241).
//
// Gradients of weights are those of the rank's positions: sum them over the
// context group as over data-parallel ranks. Weights of a block:
//
//   attention_norm.weight   input_layernorm of Hugging Face's Llama
//   attention.qkv.weight    self_attn.q_proj, k_proj, v_proj, by rows
//   attention.output.weight self_attn.o_proj
//   mlp_norm.weight         post_attention_layernorm
//   mlp.gate_up.weight      mlp.gate_proj, up_proj, by rows
//   mlp.down.weight         mlp.down_proj
//
// There is no dropout. Calls are collectives of both groups, one at a time.
// After an error the activations are to be cleared.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_TRANSFORMER_BLOCK_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_TRANSFORMER_BLOCK_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/attention.h"
#include "tensor_parallel/blocks/attention_options.h"
#include "tensor_parallel/blocks/block_activations.h"
#include "tensor_parallel/blocks/gated_mlp.h"
#include "tensor_parallel/blocks/recompute.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/rms_norm.h"
#include "tensor_parallel/layers/tensor_group.h"

namespace tessera::tensor_parallel {

struct TransformerBlockOptions {
  // Its width, type, sequence parallelism and overlap are those of the block.
  AttentionOptions attention = {};
  int64_t hidden = 0;
  bool mlp_bias = false;
  double norm_epsilon = 1e-5;
  Recompute recompute = Recompute::kNone;
  // The caller keeps x and dy as they are until the micro-batch's last
  // backward, as pipeline::Executor does: they are not copied, y is not x and
  // dx is not dy.
  bool borrows_tensors = false;
};

class TransformerBlock {
 public:
  // A collective of both groups. Refuses what its layers refuse.
  static absl::StatusOr<TransformerBlock> Create(
      const TensorGroup& group, const ContextGroup& context,
      const TransformerBlockOptions& options);

  RmsNorm& attention_norm() { return attention_norm_; }
  Attention& attention() { return attention_; }
  RmsNorm& mlp_norm() { return mlp_norm_; }
  GatedMlp& mlp() { return mlp_; }
  const TransformerBlockOptions& options() const { return options_; }

  // Good until the block is moved or gone.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  absl::StatusOr<TokenBatch> BatchOf(int64_t sequences) const {
    return attention_.BatchOf(sequences);
  }

  // FailedPrecondition where the passes of the activations are in another
  // order, or what is needed of the weights or their gradients is released (the
  // backward of weights needs no values, the others no gradients);
  // InvalidArgument where a tensor is not as above.
  absl::Status Forward(int64_t sequences, ConstTensorView x, TensorView y,
                       BlockActivations& activations);
  absl::Status BackwardInput(ConstTensorView y_gradient, TensorView x_gradient,
                             BlockActivations& activations);
  // Adds to the gradients of the weights.
  absl::Status BackwardWeight(BlockActivations& activations);
  // Both: gradients of weights are computed while those of inputs travel, and
  // less is gathered and held than by the two apart.
  absl::Status Backward(ConstTensorView y_gradient, TensorView x_gradient,
                        BlockActivations& activations);

  // After the last backward of a step.
  absl::Status FinishGradients();

 private:
  TransformerBlock(const TensorGroup& group,
                   const TransformerBlockOptions& options,
                   RmsNorm attention_norm, Attention attention,
                   RmsNorm mlp_norm, GatedMlp mlp)
      : group_(group),
        options_(options),
        attention_norm_(std::move(attention_norm)),
        attention_(std::move(attention)),
        mlp_norm_(std::move(mlp_norm)),
        mlp_(std::move(mlp)) {}

  absl::Status CheckTensor(std::string_view name, const ConstTensorView& x,
                           const TokenBatch& batch) const;
  absl::StatusOr<TensorView> Reserve(const TokenBatch& batch,
                                     PooledTensor& memory) const;
  absl::Status ForwardAttention(BlockActivations& activations);
  absl::Status NormaliseMiddle(BlockActivations& activations);
  absl::Status ComputeAgain(BlockActivations& activations);
  absl::Status StartBackward(ConstTensorView y_gradient,
                             const TensorView& x_gradient,
                             BlockActivations& activations);

  TensorGroup group_;
  TransformerBlockOptions options_;
  RmsNorm attention_norm_;
  Attention attention_;
  RmsNorm mlp_norm_;
  GatedMlp mlp_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_TRANSFORMER_BLOCK_H_
