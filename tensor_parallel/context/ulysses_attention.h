// UlyssesAttention: context parallelism by all-to-all, with the partition of
// the heads (HeadPartition) and the exchange (HeadExchange) that it uses.
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
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

// Consecutive query heads and their kv heads, with the same number of query
// heads for each kv head, so that a run is a separate attention.
struct HeadRun {
  IndexRange heads;
  IndexRange kv_heads;

  friend bool operator==(const HeadRun&, const HeadRun&) = default;
};

// The heads of each rank, if the heads of an attention are divided among the
// ranks instead of its positions.
//
//   TESSERA_ASSIGN_OR_RETURN(auto partition, HeadPartition::Create(8, 2, 4));
//   partition.RunsOf(1);          // query heads 2 and 3, kv head 0
//   partition.shares_kv_heads();  // true: ranks 0 and 1 both need kv head 0
//
// Query heads are divided evenly, with a difference of at most one; with more
// ranks than heads the last ranks have no heads. A rank also needs the kv heads
// of its query heads: if ranks do not divide the kv heads, two or more ranks
// need the same kv head. Pure arithmetic.
class HeadPartition {
 public:
  // InvalidArgument if a number is below 1 or kv heads do not divide the heads.
  static absl::StatusOr<HeadPartition> Create(int64_t heads, int64_t kv_heads,
                                              int64_t ranks);

  int64_t heads() const { return heads_.size(); }
  int64_t kv_heads() const { return heads_.size() / heads_per_kv_head_; }
  int64_t ranks() const { return heads_.parts(); }

  // The runs of a rank in [0, ranks()), in ascending order: at most three
  // non-empty runs without common kv heads, namely some query heads of the
  // first kv head, the query heads of whole kv heads, and some query heads of
  // the last kv head.
  std::vector<HeadRun> RunsOf(int64_t rank) const;
  IndexRange HeadsOf(int64_t rank) const { return heads_.RangeOf(rank); }
  IndexRange KvHeadsOf(int64_t rank) const;

  // Returns true if two ranks need the same kv head.
  bool shares_kv_heads() const;

 private:
  HeadPartition(const Partition& heads, int64_t heads_per_kv_head)
      : heads_(heads), heads_per_kv_head_(heads_per_kv_head) {}

  Partition heads_;
  int64_t heads_per_kv_head_;
};

enum class HeadKind { kQuery, kKeyValue };

// The all-to-all that converts tensors of a rank's positions and all heads into
// tensors of all positions and the rank's heads, and back.
//
//   HeadExchange exchange(group, layout, heads);
//   // q [3 sequences, 4 positions, 8 heads, 64] on each of 4 ranks ->
//   // [3, 16, 2, 64]
//   exchange.ToHeads({{{HeadKind::kQuery, q, {q_of_run_0}}}});
//   exchange.ToPositions({{{HeadKind::kQuery, {output_of_run_0}, output}}});
//
// By position, a tensor is [sequences, positions of the rank, heads, ...]. By
// head, it is one contiguous tensor [sequences, length, heads of the run, ...]
// for each run of the rank's heads, with positions in the order of the
// sequence. All tensors of a call are sent in one all-to-all of bytes. A
// message to a rank has one piece for each of its runs and each tensor, padded
// to a multiple of 8 bytes.
//
// Calls are collectives. Errors are the communicator's. The caller must check
// the shapes; the error of a copy names shapes that differ. Internal to this
// package.
class HeadExchange {
 public:
  struct ToHeadsField {
    HeadKind kind = HeadKind::kQuery;
    ConstTensorView by_position;
    std::vector<TensorView> by_head;  // For each run of this rank.
  };
  struct ToPositionsField {
    HeadKind kind = HeadKind::kQuery;
    std::vector<ConstTensorView> by_head;
    TensorView by_position;
    // For keys and values that several ranks hold: sums the received values in
    // rank order, in the type of `by_position`, which must equal the type of
    // `by_head`.
    bool sum = false;
  };

  // Precondition: all three have the same number of ranks.
  HeadExchange(const TensorGroup& group, const SequenceLayout& layout,
               const HeadPartition& heads);

  absl::Status ToHeads(std::span<const ToHeadsField> fields);
  absl::Status ToPositions(std::span<const ToPositionsField> fields);

 private:
  // The description of a tensor without its memory.
  struct Shape {
    HeadKind kind = HeadKind::kQuery;
    DType dtype = DType::kF32;
    int64_t sequences = 0;
    std::vector<int64_t> rest = {};  // After positions and heads.
  };
  // The part of a message that belongs to run `run` and tensor `field`.
  struct Piece {
    int64_t peer = 0;
    size_t run = 0;
    size_t field = 0;
    IndexRange heads = {};  // Heads of the tensor's kind.
    int64_t offset = 0;     // In the memory of all messages.
    DType dtype = DType::kF32;
    std::vector<int64_t> shape = {};
  };
  // The messages to or from all ranks.
  struct Traffic {
    std::vector<Piece> pieces = {};
    std::vector<int64_t> counts = {};  // Bytes, by rank.
    int64_t bytes = 0;
  };

  static absl::StatusOr<TensorView> ViewOf(const TensorView& messages,
                                           const Piece& piece);
  void AddMessage(std::span<const Shape> shapes, int64_t positions_of,
                  int64_t heads_of, int64_t peer, Traffic& traffic) const;
  Traffic PositionSide(std::span<const Shape> shapes) const;
  Traffic HeadSide(std::span<const Shape> shapes) const;
  absl::StatusOr<TensorView> Exchange(const Traffic& out, TensorView sent,
                                      const Traffic& in);
  absl::Status Keep(const ToPositionsField& field, const Piece& piece,
                    ConstTensorView part) const;

  TensorGroup group_;
  SequenceLayout layout_;
  std::vector<std::vector<HeadRun>> runs_;  // By rank.
  ReusableTensor sent_ = group_.Working("heads sent");
  ReusableTensor received_ = group_.Working("heads received");
};

// Attention over a sequence whose positions are divided among the ranks, by
// all-to-all: each rank gets all positions of some heads, attends over the
// whole sequence, and returns the result by position.
//
//   TESSERA_ASSIGN_OR_RETURN(auto layout, SequenceLayout::Contiguous(4096, n));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto attention, UlyssesAttention::Create(group, layout,
//                                                {.heads = 8, .kv_heads = 2,
//                                                 .head_size = 64}));
//   TESSERA_RETURN_IF_ERROR(attention.Forward({q, k, v}, output, statistics));
//
// Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509. HeadPartition divides the
// heads, of which there may be any number. kv heads that several ranks need are
// sent to each, and their gradients are summed in rank order. Positions may
// have any layout, because ranks reorder them by the sequence; the work per
// rank does not depend on the layout. With fewer heads than ranks some ranks
// have no work; RingAttention has no such limit.
//
// Bytes that a rank sends for a sequence, as a collective counts them
// (including the part to itself), where the sequence has L positions, of which
// the rank has P; there are H heads, of which it has h; it needs k kv heads,
// and all ranks together K' (the number of kv heads, unless ranks share them);
// a head has d elements of e bytes, and a number of statistics has s bytes:
//
//   forward    P (H + 2 K') d e  and back  L h (d e + s)
//   backward   P ((3 H + 2 K') d e + H s)  and back  L (h d e + 2 k d g)
//
// with g = s if ranks share kv heads, otherwise e; each tensor of a message is
// padded to 8 bytes. Each pass has two collectives, for any number of ranks.
class UlyssesAttention final : public ContextAttention {
 public:
  // InvalidArgument if the layout does not have the group's number of ranks, a
  // count is below 1, kv heads do not divide the heads, or the type is not f64,
  // f32, bf16 or f16.
  static absl::StatusOr<UlyssesAttention> Create(
      const TensorGroup& group, const SequenceLayout& layout,
      const ContextAttentionOptions& options);

  const ContextAttentionOptions& options() const override { return options_; }
  const SequenceLayout& layout() const override { return layout_; }
  std::array<int64_t, 3> FirstKeysShape(int64_t sequences) const override {
    return {1, sequences, layout_.length()};
  }
  const HeadPartition& heads() const { return heads_; }

  absl::Status Forward(const Inputs& inputs, TensorView output,
                       TensorView log_sum_exp) override;
  absl::Status Backward(const Inputs& inputs, ConstTensorView output,
                        ConstTensorView log_sum_exp,
                        ConstTensorView output_gradient,
                        const Gradients& gradients) override;

 protected:
  // One table, for the whole sequence.
  std::vector<FirstKeysTable> FirstKeysTables() const override;

 private:
  // A tensor by head: one view for each run of this rank's heads.
  using ByHead = std::vector<TensorView>;
  // The working memory of such a tensor.
  struct ByHeadMemory {
    const char* name;
    std::vector<ReusableTensor> runs = {};
  };
  struct Gathered {
    ByHead query, key, value;
    std::optional<ConstTensorView> first_keys;
    std::optional<TensorView> max_scores = {};
  };

  UlyssesAttention(const TensorGroup& group, const SequenceLayout& layout,
                   const ContextAttentionOptions& options,
                   const HeadPartition& heads);

  DType statistics() const;
  OperandShapes ShapesFor(const Inputs& inputs) const;
  absl::StatusOr<ByHead> Get(ByHeadMemory& memory, HeadKind kind, DType dtype,
                             int64_t sequences, bool has_elements = true);
  absl::StatusOr<Gathered> GetInputs(const Inputs& inputs);
  AttentionBlock BlockOf(const Gathered& gathered, size_t run) const;
  absl::Status Attend(const Gathered& gathered, const ByHead& output,
                      const ByHead& log_sum_exp);
  absl::StatusOr<ByHead> Narrowed(const ByHead& wide, ByHeadMemory& memory,
                                  HeadKind kind);
  absl::StatusOr<ByHead> Widened(const ByHead& narrow, ByHeadMemory& memory);
  absl::StatusOr<Gathered> AttendGradients(int64_t sequences,
                                           const Gathered& gathered,
                                           const ByHead& output,
                                           const ByHead& output_gradient,
                                           const ByHead& log_sum_exp);
  absl::Status ReturnGradients(const Gathered& wide,
                               const Gradients& gradients);
  absl::StatusOr<TensorView> SumOf(ReusableTensor& memory, TensorView gradient);

  TensorGroup group_;
  SequenceLayout layout_;
  ContextAttentionOptions options_;
  HeadPartition heads_;
  std::vector<HeadRun> runs_;  // This rank's.
  HeadExchange exchange_;

  ByHeadMemory query_{"query by head"};
  ByHeadMemory key_{"key by head"};
  ByHeadMemory value_{"value by head"};
  ByHeadMemory output_{"output by head"};
  ByHeadMemory log_sum_exp_{"log sum exp by head"};
  ByHeadMemory narrow_output_{"narrow output by head"};
  ByHeadMemory output_gradient_{"output gradient by head"};
  ByHeadMemory delta_{"delta by head"};
  ByHeadMemory query_gradient_{"query gradient by head"};
  ByHeadMemory key_gradient_{"key gradient by head"};
  ByHeadMemory value_gradient_{"value gradient by head"};
  ByHeadMemory narrow_query_{"narrow query gradient by head"};
  ByHeadMemory narrow_key_{"narrow key gradient by head"};
  ByHeadMemory narrow_value_{"narrow value gradient by head"};
  ReusableTensor key_sum_ = group_.Working("key gradient sum");
  ReusableTensor value_sum_ = group_.Working("value gradient sum");
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_CONTEXT_ULYSSES_ATTENTION_H_
