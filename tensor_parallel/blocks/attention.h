// Attention: grouped-query self-attention with rotary positions, from its
// input to its output projection, over a tensor group that shares the heads
// and a context group that shares the positions.
//
//   TESSERA_ASSIGN_OR_RETURN(auto layout, SequenceLayout::Zigzag(4096, cp));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto attention,
//       Attention::Create(group, {context_group, layout},
//                         {.width = 512, .heads = 8, .kv_heads = 2,
//                          .head_size = 64}));
//   AttentionActivations activations(pool);           // one a micro-batch
//   TESSERA_RETURN_IF_ERROR(attention.Forward(batch, x, y, activations));
//   TESSERA_RETURN_IF_ERROR(attention.BackwardInput(batch, dy, dx,
//                                                   activations));
//   TESSERA_RETURN_IF_ERROR(attention.BackwardWeight(batch, dy, x,
//                                                    activations));
//   TESSERA_RETURN_IF_ERROR(attention.FinishGradients());   // once a step
//
// A rank's tokens are those of its positions in the layout, of the first
// sequence, then of the second, and so on. x, y and their gradients are
// [tokens, width] of one dtype, the same on every rank of the tensor group, or
// under sequence parallelism its part of them (Balanced). Gradients of weights
// are those of the rank's positions: the context group is to be summed over as
// data-parallel ranks are. Calls are collectives of both groups. Weights:
//
//   qkv.weight      [(heads + 2 kv_heads) head_size, width]   q_proj, then
//                   k_proj, then v_proj of Llama; a rank that has a part of the
//                   heads has three ranges of rows, and kv heads that several
//                   ranks hold are of the first of them (ParameterRows)
//   output.weight   [width, heads head_size]                  o_proj
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/attention_core.h"
#include "tensor_parallel/blocks/attention_options.h"
#include "tensor_parallel/context/context_attention.h"
#include "tensor_parallel/layers/column_parallel_linear.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/row_parallel_linear.h"
#include "tensor_parallel/layers/tensor_group.h"

namespace tessera::tensor_parallel {

class Attention {
 public:
  // A collective of both groups. InvalidArgument where heads cannot be dealt
  // out, the head size is odd though positions are rotary, or the core or
  // layout is of other options or ranks.
  static absl::StatusOr<Attention> Create(const TensorGroup& group,
                                          const ContextGroup& context,
                                          const AttentionOptions& options);

  // What a core has to be made of: the heads of the rank, 0 where there are
  // more ranks than heads (then none is used).
  static absl::StatusOr<ContextAttentionOptions> CoreOptions(
      const TensorGroup& group, const AttentionOptions& options) {
    return AttentionCore::OptionsOf(group, options);
  }

  ColumnParallelLinear& qkv() { return qkv_; }
  RowParallelLinear& output() { return output_; }
  // None where the rank has no heads.
  const std::shared_ptr<ContextAttention>& core() const {
    return core_.attention();
  }
  // Appends "prefix.qkv.weight" and so on. Good until the layer is moved.
  void AppendParameters(std::string_view prefix,
                        std::vector<Parameter*>& parameters);

  // InvalidArgument where there are fewer than 0.
  absl::StatusOr<TokenBatch> BatchOf(int64_t sequences) const {
    return core_.BatchOf(sequences);
  }

  // FailedPrecondition, here and below, where what is needed of the weights or
  // their gradients is released, or of the activations is not there.
  absl::Status Forward(const TokenBatch& batch, ConstTensorView x, TensorView y,
                       AttentionActivations& activations);
  // Leaves in the activations what BackwardWeight needs, which adds to the
  // gradients of the weights.
  absl::Status BackwardInput(const TokenBatch& batch,
                             ConstTensorView y_gradient, TensorView x_gradient,
                             AttentionActivations& activations);
  absl::Status BackwardWeight(const TokenBatch& batch,
                              ConstTensorView y_gradient, ConstTensorView x,
                              AttentionActivations& activations);
  // Both: gradients of weights are computed while those of inputs travel.
  absl::Status Backward(const TokenBatch& batch, ConstTensorView y_gradient,
                        ConstTensorView x, TensorView x_gradient,
                        AttentionActivations& activations);

  absl::Status FinishGradients();

 private:
  Attention(const TensorGroup& group, const AttentionOptions& options,
            AttentionCore core, ColumnParallelLinear qkv,
            RowParallelLinear output)
      : group_(group),
        options_(options),
        core_(std::move(core)),
        qkv_(std::move(qkv)),
        output_(std::move(output)) {}

  absl::Status CheckValues();
  absl::Status CheckGradients();
  absl::StatusOr<ConstTensorView> OutputOf(
      const AttentionActivations& activations) const;
  absl::Status AttendAgain(const TokenBatch& batch,
                           AttentionActivations& activations);

  TensorGroup group_;
  AttentionOptions options_;
  AttentionCore core_;
  ColumnParallelLinear qkv_;
  RowParallelLinear output_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_ATTENTION_H_
