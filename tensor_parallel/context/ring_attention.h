// RingAttention: attention over a sequence whose positions are divided among
// the ranks.
#ifndef TESSERA_TENSOR_PARALLEL_CONTEXT_RING_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_CONTEXT_RING_ATTENTION_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/context/context_attention.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// Some queries of one rank and the keys of another rank that they see, as
// indices into the ranks' positions.
struct VisiblePart {
  IndexRange queries;
  IndexRange keys;
  BlockKind kind = BlockKind::kFull;  // kFull or kCausal.

  friend bool operator==(const VisiblePart&, const VisiblePart&) = default;
};

// The parts of the queries of one rank and the keys of another in which queries
// see keys; each visible pair of a query and a key is in exactly one part. With
// the existing layouts there is at most one part.
std::vector<VisiblePart> VisibleParts(const SequenceLayout& layout,
                                      int64_t query_rank, int64_t key_rank,
                                      bool causal);

// Each rank keeps its queries; keys and values circulate.
//
//   TESSERA_ASSIGN_OR_RETURN(auto layout, SequenceLayout::Zigzag(4096, n));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto attention, RingAttention::Create(group, layout,
//                                             {.heads = 8, .kv_heads = 2,
//                                              .head_size = 64}));
//   TESSERA_RETURN_IF_ERROR(attention.Forward({q, k, v}, output, statistics));
//
// In step i, rank r processes the keys and values of rank r - i while those of
// rank r - i - 1 arrive. The forward sends n - 1 messages with keys and values;
// the backward sends the same, plus n messages with their gradients, which
// circulate with them and return to their owner. Keys and values that a causal
// mask hides are passed on without computation (VisibleParts). A single rank
// computes its only block directly (AttentionBlock::is_whole). All sequences of
// a micro-batch circulate together. Liu, Zaharia and Abbeel, Ring Attention,
// arXiv 2310.01889; partial results are merged as in ops/attention.h.
class RingAttention final : public ContextAttention {
 public:
  // InvalidArgument if the layout has another number of ranks, a count is below
  // 1, kv heads do not divide the heads, or the type is not f64, f32, bf16 or
  // f16.
  static absl::StatusOr<RingAttention> Create(
      const TensorGroup& group, const SequenceLayout& layout,
      const ContextAttentionOptions& options);

  const ContextAttentionOptions& options() const override { return options_; }
  const SequenceLayout& layout() const override { return layout_; }
  std::array<int64_t, 3> FirstKeysShape(int64_t sequences) const override {
    return {layout_.ranks(), sequences, layout_.SizeOf(group_.rank())};
  }

  absl::Status Forward(const Inputs& inputs, TensorView output,
                       TensorView log_sum_exp) override;
  absl::Status Backward(const Inputs& inputs, ConstTensorView output,
                        ConstTensorView log_sum_exp,
                        ConstTensorView output_gradient,
                        const Gradients& gradients) override;

 protected:
  // One table for the keys of each rank.
  std::vector<FirstKeysTable> FirstKeysTables() const override;

 private:
  // Keys and values of one rank.
  struct Block {
    int64_t rank = 0;
    ConstTensorView key;
    ConstTensorView value;
  };

  RingAttention(const TensorGroup& group, const SequenceLayout& layout,
                const ContextAttentionOptions& options);

  DType statistics() const;
  int64_t RankAt(int64_t step) const;
  OperandShapes ShapesFor(const Inputs& inputs) const;
  absl::StatusOr<TensorView> PairOf(ReusableTensor& memory, DType dtype,
                                    int64_t sequences, int64_t rank) const;
  absl::StatusOr<TensorView> PairAt(int64_t step, int64_t sequences);
  absl::StatusOr<Block> BlockAt(int64_t step, int64_t sequences);
  absl::StatusOr<Block> LoadOwn(const Inputs& inputs);
  absl::StatusOr<Pending> StartPassing(ConstTensorView mine,
                                       TensorView next) const;
  absl::StatusOr<AttentionBlock> AttentionOf(const Inputs& inputs,
                                             const Block& block,
                                             const VisiblePart& part) const;
  absl::StatusOr<Block> StartNextBlock(int64_t step, const Block& block,
                                       Pending* pending);
  absl::Status AttendTo(const Inputs& inputs, const Block& block,
                        const AttentionState& state) const;
  absl::Status Attend(const Inputs& inputs, const AttentionState& state);

  // The state that all steps of one backward share.
  struct Backpropagation {
    const Inputs& inputs;
    ConstTensorView output_gradient;
    ConstTensorView output;  // The result of Attend.
    ConstTensorView log_sum_exp;
    std::optional<ConstTensorView> delta;  // Not of a single rank.
    TensorView query_gradient;
  };
  absl::Status AddShare(const Backpropagation& backward, const Block& block,
                        TensorView keys, TensorView values) const;
  absl::StatusOr<TensorView> GoRound(const Backpropagation& backward);

  TensorGroup group_;
  SequenceLayout layout_;
  ContextAttentionOptions options_;
  // By rank of the keys, the parts that this rank's queries see.
  std::vector<std::vector<VisiblePart>> visible_;

  // The circulating keys and values: one pair is in use while the next arrives.
  std::array<ReusableTensor, 2> pairs_{group_.Working("ring pair 0"),
                                       group_.Working("ring pair 1")};
  std::array<ReusableTensor, 2> pair_gradients_{
      group_.Working("ring pair gradient 0"),
      group_.Working("ring pair gradient 1")};
  ReusableTensor share_ = group_.Working("ring share");
  ReusableTensor output_ = group_.Working("attention output");
  ReusableTensor delta_ = group_.Working("attention delta");
  ReusableTensor query_gradient_ = group_.Working("attention query gradient");
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_CONTEXT_RING_ATTENTION_H_
