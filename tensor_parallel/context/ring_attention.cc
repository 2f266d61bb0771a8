#include "tensor_parallel/context/ring_attention.h"

#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "tensor_parallel/layers/parameter.h"

namespace tessera::tensor_parallel {
namespace {

// to = from, of the same type or of its statistics.
absl::Status Store(Ops& ops, ConstTensorView from, TensorView to) {
  return from.dtype() == to.dtype() ? ops.Copy(from, to) : ops.Cast(from, to);
}

}  // namespace

absl::StatusOr<RingAttention> RingAttention::Create(
    const TensorGroup& group, const SequenceLayout& layout,
    const ContextAttentionOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const ContextAttentionOptions checked,
                           OperandShapes::CheckOptions(group, layout, options));
  return RingAttention(group, layout, checked);
}

RingAttention::RingAttention(const TensorGroup& group,
                             const SequenceLayout& layout,
                             const ContextAttentionOptions& options)
    : group_(group), layout_(layout), options_(options) {
  for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
    positions_.push_back(layout.PositionsOf(rank));
  }
}

DType RingAttention::statistics() const {
  return GradientDType(options_.dtype);
}

// Whose block this rank works on.
int64_t RingAttention::RankAt(int64_t step) const {
  const int64_t n = group_.size();
  return (group_.rank() + n - step % n) % n;
}

// Returns true if this rank's queries see none of the keys of `rank`.
bool RingAttention::IsHidden(int64_t rank) const {
  const auto& queries = positions_[static_cast<size_t>(group_.rank())];
  const auto& keys = positions_[static_cast<size_t>(rank)];
  if (queries.empty() || keys.empty()) return true;
  return options_.causal && keys.front() > queries.back();
}

OperandShapes RingAttention::Shapes() const {
  return OperandShapes(group_.rank(), layout_.SizeOf(group_.rank()), options_);
}

absl::StatusOr<TensorView> RingAttention::PairOf(ReusableTensor& memory,
                                                 DType dtype,
                                                 int64_t rank) const {
  const int64_t shape[] = {2, layout_.SizeOf(rank), options_.kv_heads,
                           options_.head_size};
  return memory.Get(dtype, shape);
}

// The block of a step, at its present or future location.
absl::StatusOr<RingAttention::Block> RingAttention::BlockAt(int64_t step) {
  const int64_t rank = RankAt(step);
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView both,
      PairOf(pairs_[static_cast<size_t>(step % 2)], options_.dtype, rank));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key, both.Select(0, 0));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value, both.Select(0, 1));
  return Block{rank, both, key, value};
}

absl::StatusOr<RingAttention::Block> RingAttention::LoadOwn(
    const Inputs& inputs) {
  TESSERA_ASSIGN_OR_RETURN(Block own, BlockAt(0));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key, own.both.Select(0, 0));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value, own.both.Select(0, 1));
  TESSERA_RETURN_IF_ERROR(group_.ops().Copy(inputs.key, key));
  TESSERA_RETURN_IF_ERROR(group_.ops().Copy(inputs.value, value));
  return own;
}

// To the rank after this one, from the one before it.
absl::StatusOr<Pending> RingAttention::StartPassing(ConstTensorView mine,
                                                    TensorView next) const {
  const int64_t n = group_.size();
  if (n == 1) {
    TESSERA_RETURN_IF_ERROR(group_.ops().Copy(mine, next));
    return Pending();
  }
  using collectives::Rank;
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Work work,
      group_.communicator()->Start(collectives::SendReceiveOf(
          collectives::ConstBuffer(mine.data(), mine.element_count(),
                                   mine.dtype()),
          Rank((group_.rank() + 1) % n),
          collectives::Buffer(next.data(), next.element_count(), next.dtype()),
          Rank((group_.rank() + n - 1) % n))));
  return Pending(std::move(work));
}

// Starts to receive the next block; `pending` completes when it arrives.
// Returns this block if it is the last one.
absl::StatusOr<RingAttention::Block> RingAttention::StartNextBlock(
    int64_t step, const Block& block, Pending* pending) {
  *pending = Pending();
  if (step + 1 == group_.size()) return block;
  TESSERA_ASSIGN_OR_RETURN(Block next, BlockAt(step + 1));
  TESSERA_ASSIGN_OR_RETURN(*pending, StartPassing(block.both, next.both));
  return next;
}

AttentionBlock RingAttention::AttentionOf(const Inputs& inputs,
                                          const Block& block) const {
  return {.query = inputs.query,
          .key = block.key,
          .value = block.value,
          .query_positions = positions_[static_cast<size_t>(group_.rank())],
          .key_positions = positions_[static_cast<size_t>(block.rank)],
          .causal = options_.causal,
          .scale = *options_.scale};
}

absl::Status RingAttention::Attend(const Inputs& inputs,
                                   const AttentionState& state) {
  TESSERA_ASSIGN_OR_RETURN(Block block, LoadOwn(inputs));
  for (int64_t step = 0; step < group_.size(); ++step) {
    Pending pending;
    TESSERA_ASSIGN_OR_RETURN(Block next, StartNextBlock(step, block, &pending));
    absl::Status status =
        IsHidden(block.rank)
            ? absl::OkStatus()
            : group_.ops().Attend(AttentionOf(inputs, block), state);
    // Also after an error: its buffers must not be used any more.
    status.Update(pending.Wait());
    TESSERA_RETURN_IF_ERROR(status);
    block = next;
  }
  return absl::OkStatus();
}

absl::Status RingAttention::Forward(const Inputs& inputs, TensorView output,
                                    TensorView log_sum_exp) {
  TESSERA_RETURN_IF_ERROR(Shapes().CheckForward(inputs, output, log_sum_exp));
  Ops& ops = group_.ops();
  const std::vector<int64_t> shape(output.shape().begin(),
                                   output.shape().end());
  TensorView sum = output;
  if (statistics() != options_.dtype) {
    TESSERA_ASSIGN_OR_RETURN(sum, output_.Get(statistics(), shape));
  }
  TESSERA_RETURN_IF_ERROR(ops.Fill(0, sum));
  TESSERA_RETURN_IF_ERROR(
      ops.Fill(-std::numeric_limits<double>::infinity(), log_sum_exp));
  TESSERA_RETURN_IF_ERROR(Attend(inputs, {sum, log_sum_exp}));
  return statistics() == options_.dtype ? absl::OkStatus()
                                        : ops.Cast(sum, output);
}

// Adds the contributions of this rank's queries to the gradients of a block.
absl::Status RingAttention::AddShare(const Backpropagation& backward,
                                     const Block& block,
                                     TensorView pair) const {
  if (IsHidden(block.rank)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const TensorView key_gradient, pair.Select(0, 0));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value_gradient, pair.Select(0, 1));
  return group_.ops().AttendGradient(
      AttentionOf(backward.inputs, block),
      {backward.output_gradient, backward.log_sum_exp, backward.delta,
       backward.query_gradient, key_gradient, value_gradient});
}

// Returns the gradients of this rank's keys and values after they have passed
// all ranks. A block's gradients follow it one step later: a rank computes its
// contribution while they arrive, and adds it.
absl::StatusOr<TensorView> RingAttention::GoRound(
    const Backpropagation& backward) {
  Ops& ops = group_.ops();
  const int64_t n = group_.size();
  TESSERA_ASSIGN_OR_RETURN(Block block, LoadOwn(backward.inputs));
  TESSERA_ASSIGN_OR_RETURN(
      TensorView held, PairOf(pair_gradients_[0], statistics(), block.rank));
  TESSERA_RETURN_IF_ERROR(ops.Fill(0, held));
  Pending held_comes;
  for (int64_t step = 0; step < n; ++step) {
    Pending block_comes;
    TESSERA_ASSIGN_OR_RETURN(Block next,
                             StartNextBlock(step, block, &block_comes));
    TESSERA_ASSIGN_OR_RETURN(const TensorView share,
                             PairOf(share_, statistics(), block.rank));
    absl::Status status = ops.Fill(0, share);
    if (status.ok()) status = AddShare(backward, block, share);
    status.Update(held_comes.Wait());
    if (status.ok()) status = ops.Add(share, held);
    if (!status.ok()) {
      block_comes.Wait().IgnoreError();
      return status;
    }
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView coming,
        PairOf(pair_gradients_[static_cast<size_t>((step + 1) % 2)],
               statistics(), RankAt(step + 1)));
    absl::StatusOr<Pending> passing = StartPassing(held, coming);
    status = block_comes.Wait();
    if (!passing.ok()) return passing.status();
    held_comes = *std::move(passing);
    if (!status.ok()) {
      held_comes.Wait().IgnoreError();
      return status;
    }
    held = coming;
    block = next;
  }
  TESSERA_RETURN_IF_ERROR(held_comes.Wait());
  return held;
}

absl::Status RingAttention::Backward(const Inputs& inputs,
                                     ConstTensorView output,
                                     ConstTensorView log_sum_exp,
                                     ConstTensorView output_gradient,
                                     const Gradients& gradients) {
  TESSERA_RETURN_IF_ERROR(Shapes().CheckBackward(inputs, output, log_sum_exp,
                                                 output_gradient, gradients));
  Ops& ops = group_.ops();
  const std::vector<int64_t> shape(output.shape().begin(),
                                   output.shape().end());
  ConstTensorView sum = output;
  if (statistics() != options_.dtype) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView wide,
                             output_.Get(statistics(), shape));
    TESSERA_RETURN_IF_ERROR(ops.Cast(output, wide));
    sum = wide;
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView delta,
                           delta_.Get(statistics(), std::span(shape).first(2)));
  TESSERA_RETURN_IF_ERROR(ops.RowDots(sum, output_gradient, delta));
  TESSERA_ASSIGN_OR_RETURN(const TensorView query_gradient,
                           query_gradient_.Get(statistics(), shape));
  TESSERA_RETURN_IF_ERROR(ops.Fill(0, query_gradient));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView pair,
      GoRound({inputs, output_gradient, log_sum_exp, delta, query_gradient}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key_gradient, pair.Select(0, 0));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value_gradient, pair.Select(0, 1));
  TESSERA_RETURN_IF_ERROR(Store(ops, query_gradient, gradients.query));
  TESSERA_RETURN_IF_ERROR(Store(ops, key_gradient, gradients.key));
  return Store(ops, value_gradient, gradients.value);
}

}  // namespace tessera::tensor_parallel
