// UlyssesAttention: attention over a sequence whose positions are parted among
// the ranks, by all-to-all: each rank gets all positions of some heads, attends
// over the whole sequence, and gives the result back by position.
//
//   TESSERA_ASSIGN_OR_RETURN(auto layout, SequenceLayout::Contiguous(4096, n));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto attention, UlyssesAttention::Create(group, layout,
//                                                {.heads = 8, .kv_heads = 2,
//                                                 .head_size = 64}));
//   TESSERA_RETURN_IF_ERROR(attention.Forward({q, k, v}, output, statistics));
//
// Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509. Heads are dealt out by
// HeadPartition: any number of them; kv heads that several ranks need go to
// each, and their gradients are summed up in the order of ranks. Positions may
// lie in any layout, as ranks work on the sequence in its order; work per rank
// is the same in all of them. With fewer heads than ranks some have no work:
// RingAttention has no such limit.
//
// Bytes that a rank sends, its part to itself included, as a collective counts
// them: L positions, of which it has P; H heads, of which it has h; it needs k
// kv heads, and all ranks together K' (the kv heads, where they are not
// shared); d elements a head of e bytes, s bytes a number of statistics.
//
//   forward    P (H + 2 K') d e  and back  L h (d e + s)
//   backward   P (2 (H + K') d e + 2 H s)  and back  L (h d e + 2 k d g)
//
// with g = s where ranks share kv heads, else e; each tensor of a message is
// padded to 8 bytes. Two collectives each way, whatever the number of ranks.
#ifndef TESSERA_TENSOR_PARALLEL_CONTEXT_ULYSSES_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_CONTEXT_ULYSSES_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/context/context_attention.h"
#include "tensor_parallel/context/head_exchange.h"
#include "tensor_parallel/context/head_partition.h"
#include "tensor_parallel/context/operand_shapes.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/reusable_tensor.h"
#include "tensor_parallel/layers/tensor_group.h"

namespace tessera::tensor_parallel {

class UlyssesAttention final : public ContextAttention {
 public:
  // InvalidArgument where the layout is not of the group's ranks, a count is
  // below 1, kv heads do not divide the heads, or the type is none of f64, f32
  // and bf16.
  static absl::StatusOr<UlyssesAttention> Create(
      const TensorGroup& group, const SequenceLayout& layout,
      const ContextAttentionOptions& options);

  const ContextAttentionOptions& options() const override { return options_; }
  const SequenceLayout& layout() const override { return layout_; }
  const HeadPartition& heads() const { return heads_; }

  absl::Status Forward(const Inputs& inputs, TensorView output,
                       TensorView log_sum_exp) override;
  absl::Status Backward(const Inputs& inputs, ConstTensorView output,
                        ConstTensorView log_sum_exp,
                        ConstTensorView output_gradient,
                        const Gradients& gradients) override;

 private:
  // A tensor by head: one for each run of this rank's heads.
  using ByHead = std::vector<TensorView>;
  using ByHeadMemory = std::vector<ReusableTensor>;
  struct Gathered {
    ByHead query, key, value;
  };

  UlyssesAttention(const TensorGroup& group, const SequenceLayout& layout,
                   const ContextAttentionOptions& options,
                   const HeadPartition& heads);

  DType statistics() const;
  OperandShapes Shapes() const;
  absl::StatusOr<ByHead> Get(ByHeadMemory& memory, HeadKind kind, DType dtype,
                             bool has_elements = true);
  absl::StatusOr<Gathered> GetInputs();
  AttentionBlock BlockOf(const Gathered& gathered, size_t run) const;
  absl::Status Attend(const Gathered& gathered, const ByHead& output,
                      const ByHead& log_sum_exp);
  absl::StatusOr<ByHead> Narrowed(const ByHead& wide, ByHeadMemory& memory,
                                  HeadKind kind);
  absl::StatusOr<TensorView> DeltaOf(ConstTensorView output,
                                     ConstTensorView output_gradient);
  absl::Status ReturnGradients(const Gathered& wide,
                               const Gradients& gradients);
  absl::StatusOr<TensorView> SumOf(ReusableTensor& memory, TensorView gradient);

  TensorGroup group_;
  SequenceLayout layout_;
  ContextAttentionOptions options_;
  HeadPartition heads_;
  std::vector<HeadRun> runs_;       // This rank's.
  std::vector<int64_t> positions_;  // All of the sequence, in order.
  HeadExchange exchange_;

  ByHeadMemory query_, key_, value_, output_, log_sum_exp_, narrow_output_;
  ByHeadMemory output_gradient_, delta_;
  ByHeadMemory query_gradient_, key_gradient_, value_gradient_;
  ByHeadMemory narrow_query_, narrow_key_, narrow_value_;
  ReusableTensor wide_output_{group_.memory()}, local_delta_{group_.memory()};
  ReusableTensor key_sum_{group_.memory()}, value_sum_{group_.memory()};
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_CONTEXT_ULYSSES_ATTENTION_H_
