#include "tensor_parallel/context/ring_attention.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "tensor_parallel/layers/parameter.h"

namespace tessera::tensor_parallel {
namespace {

// to = from, of the same type or of its statistics.
absl::Status Store(Ops& ops, ConstTensorView from, TensorView to) {
  return from.dtype() == to.dtype() ? ops.Run(op::Copy{from, to})
                                    : ops.Run(op::Cast{from, to});
}

// The views of a part of the positions, which are dimension 1.
template <typename View>
absl::StatusOr<View> At(const View& x, IndexRange positions) {
  return x.Narrow(1, positions.begin, positions.size());
}

// The number of the rank's keys before `position`; its positions ascend.
int64_t KeysBefore(const SequenceLayout& layout, int64_t rank,
                   int64_t position) {
  int64_t keys = 0;
  for (const IndexRange& range : layout.RangesOf(rank)) {
    keys += std::clamp<int64_t>(position - range.begin, 0, range.size());
  }
  return keys;
}

}  // namespace

std::vector<VisiblePart> VisibleParts(const SequenceLayout& layout,
                                      int64_t query_rank, int64_t key_rank,
                                      bool causal) {
  const IndexRange queries = {0, layout.SizeOf(query_rank)};
  const IndexRange keys = {0, layout.SizeOf(key_rank)};
  if (queries.empty() || keys.empty()) return {};
  if (!causal) return {{queries, keys, BlockKind::kFull}};
  // The rank's positions ascend, so that their mask is that of a sequence.
  if (query_rank == key_rank) return {{queries, keys, BlockKind::kCausal}};
  // No position of another rank lies within a range: all of its queries see the
  // same first keys.
  std::vector<VisiblePart> parts;
  int64_t begin = 0;
  for (const IndexRange& range : layout.RangesOf(query_rank)) {
    const IndexRange part = {begin, begin + range.size()};
    begin = part.end;
    const IndexRange seen = {0, KeysBefore(layout, key_rank, range.begin)};
    if (part.empty() || seen.empty()) continue;
    if (!parts.empty() && parts.back().keys == seen) {
      parts.back().queries.end = part.end;
    } else {
      parts.push_back({part, seen, BlockKind::kFull});
    }
  }
  return parts;
}

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
    visible_.push_back(
        VisibleParts(layout, group.rank(), rank, options.causal));
  }
}

std::vector<ContextAttention::FirstKeysTable> RingAttention::FirstKeysTables()
    const {
  std::vector<FirstKeysTable> tables;
  for (int64_t rank = 0; rank < layout_.ranks(); ++rank) {
    tables.push_back(
        {layout_.PositionsOf(group_.rank()), layout_.PositionsOf(rank)});
  }
  return tables;
}

DType RingAttention::statistics() const {
  return GradientDType(options_.dtype);
}

// The rank whose keys and values this rank processes in a step.
int64_t RingAttention::RankAt(int64_t step) const {
  const int64_t n = group_.size();
  return (group_.rank() + n - step % n) % n;
}

OperandShapes RingAttention::ShapesFor(const Inputs& inputs) const {
  return OperandShapes(group_.rank(), layout_.SizeOf(group_.rank()),
                       inputs.query, options_);
}

absl::StatusOr<TensorView> RingAttention::PairOf(ReusableTensor& memory,
                                                 DType dtype, int64_t sequences,
                                                 int64_t rank) const {
  const int64_t shape[] = {2, sequences, layout_.SizeOf(rank),
                           options_.kv_heads, options_.head_size};
  return memory.Get(dtype, shape);
}

// The memory for the keys and then the values of a step: [2, sequences,
// positions, kv_heads, head_size].
absl::StatusOr<TensorView> RingAttention::PairAt(int64_t step,
                                                 int64_t sequences) {
  return PairOf(pairs_[static_cast<size_t>(step % 2)], options_.dtype,
                sequences, RankAt(step));
}

absl::StatusOr<RingAttention::Block> RingAttention::BlockAt(int64_t step,
                                                            int64_t sequences) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView both, PairAt(step, sequences));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key, both.Select(0, 0));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value, both.Select(0, 1));
  return Block{RankAt(step), key, value};
}

absl::StatusOr<RingAttention::Block> RingAttention::LoadOwn(
    const Inputs& inputs) {
  // With one rank there is no communication and no copy.
  if (group_.size() == 1) return Block{0, inputs.key, inputs.value};
  const int64_t sequences = inputs.query.shape()[0];
  TESSERA_ASSIGN_OR_RETURN(const TensorView both, PairAt(0, sequences));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key, both.Select(0, 0));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value, both.Select(0, 1));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{inputs.key, key}));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{inputs.value, value}));
  return BlockAt(0, sequences);
}

// Sends `mine` to the next rank and receives `next` from the previous rank.
absl::StatusOr<Pending> RingAttention::StartPassing(ConstTensorView mine,
                                                    TensorView next) const {
  const int64_t n = group_.size();
  using collectives::Rank;
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Work work,
      group_.communicator()->StartOn(
          group_.queue(),
          collectives::SendReceiveOf(
              collectives::ConstBuffer(mine.data(), mine.element_count(),
                                       mine.dtype()),
              Rank((group_.rank() + 1) % n),
              collectives::Buffer(next.data(), next.element_count(),
                                  next.dtype()),
              Rank((group_.rank() + n - 1) % n))));
  return Pending(std::move(work), group_.queue());
}

// Starts to receive the next block; `pending` completes when it arrives.
// Returns this block if it is the last one.
absl::StatusOr<RingAttention::Block> RingAttention::StartNextBlock(
    int64_t step, const Block& block, Pending* pending) {
  *pending = Pending();
  if (step + 1 == group_.size()) return block;
  const int64_t sequences = block.key.shape()[0];
  TESSERA_ASSIGN_OR_RETURN(const TensorView mine, PairAt(step, sequences));
  TESSERA_ASSIGN_OR_RETURN(const TensorView next, PairAt(step + 1, sequences));
  TESSERA_ASSIGN_OR_RETURN(*pending, StartPassing(mine, next));
  return BlockAt(step + 1, sequences);
}

absl::StatusOr<AttentionBlock> RingAttention::AttentionOf(
    const Inputs& inputs, const Block& block, const VisiblePart& part) const {
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView query,
                           At(inputs.query, part.queries));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView key, At(block.key, part.keys));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView value,
                           At(block.value, part.keys));
  AttentionBlock attention = {.query = query,
                              .key = key,
                              .value = value,
                              .kind = part.kind,
                              .scale = *options_.scale,
                              .cap = options_.cap,
                              .is_whole = group_.size() == 1};
  // A part's keys begin with the first of the rank.
  if (inputs.first_keys.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView table,
                             inputs.first_keys->Select(0, block.rank));
    TESSERA_ASSIGN_OR_RETURN(attention.first_keys, At(table, part.queries));
  }
  return attention;
}

// Merges the block's keys that this rank's queries see into the state.
absl::Status RingAttention::AttendTo(const Inputs& inputs, const Block& block,
                                     const AttentionState& state) const {
  for (const VisiblePart& part : visible_[static_cast<size_t>(block.rank)]) {
    TESSERA_ASSIGN_OR_RETURN(const AttentionBlock attention,
                             AttentionOf(inputs, block, part));
    TESSERA_ASSIGN_OR_RETURN(const TensorView output,
                             At(state.output, part.queries));
    TESSERA_ASSIGN_OR_RETURN(const TensorView log_sum_exp,
                             At(state.log_sum_exp, part.queries));
    TESSERA_RETURN_IF_ERROR(
        group_.ops().Run(op::Attend{attention, {output, log_sum_exp}}));
    if (!inputs.max_scores.has_value()) continue;
    TESSERA_RETURN_IF_ERROR(
        group_.ops().Run(op::MaxScores{attention, *inputs.max_scores}));
  }
  return absl::OkStatus();
}

absl::Status RingAttention::Attend(const Inputs& inputs,
                                   const AttentionState& state) {
  TESSERA_ASSIGN_OR_RETURN(Block block, LoadOwn(inputs));
  for (int64_t step = 0; step < group_.size(); ++step) {
    Pending pending;
    TESSERA_ASSIGN_OR_RETURN(Block next, StartNextBlock(step, block, &pending));
    absl::Status status = AttendTo(inputs, block, state);
    // Waits even after an error, because the operation uses the buffers.
    status.Update(pending.Wait());
    TESSERA_RETURN_IF_ERROR(status);
    block = next;
  }
  return absl::OkStatus();
}

absl::Status RingAttention::Forward(const Inputs& inputs, TensorView output,
                                    TensorView log_sum_exp) {
  TESSERA_RETURN_IF_ERROR(
      ShapesFor(inputs).CheckForward(inputs, output, log_sum_exp));
  if (inputs.first_keys.has_value()) {
    TESSERA_RETURN_IF_ERROR(ShapesFor(inputs).CheckFirstKeys(
        inputs, FirstKeysShape(inputs.query.shape()[0])));
  }
  if (group_.size() == 1) {
    TESSERA_ASSIGN_OR_RETURN(const Block block, LoadOwn(inputs));
    return AttendTo(inputs, block, {output, log_sum_exp});
  }
  Ops& ops = group_.ops();
  const std::vector<int64_t> shape(output.shape().begin(),
                                   output.shape().end());
  TensorView sum = output;
  if (statistics() != options_.dtype) {
    TESSERA_ASSIGN_OR_RETURN(sum, output_.Get(statistics(), shape));
  }
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{0, sum}));
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::Fill{-std::numeric_limits<double>::infinity(), log_sum_exp}));
  TESSERA_RETURN_IF_ERROR(Attend(inputs, {sum, log_sum_exp}));
  return statistics() == options_.dtype ? absl::OkStatus()
                                        : ops.Run(op::Cast{sum, output});
}

// Adds the contributions of this rank's queries to the gradients of a block's
// keys and values; of a single rank, sets them.
absl::Status RingAttention::AddShare(const Backpropagation& backward,
                                     const Block& block, TensorView keys,
                                     TensorView values) const {
  for (const VisiblePart& part : visible_[static_cast<size_t>(block.rank)]) {
    TESSERA_ASSIGN_OR_RETURN(const AttentionBlock attention,
                             AttentionOf(backward.inputs, block, part));
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output_gradient,
                             At(backward.output_gradient, part.queries));
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output,
                             At(backward.output, part.queries));
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView log_sum_exp,
                             At(backward.log_sum_exp, part.queries));
    std::optional<ConstTensorView> delta;
    if (backward.delta.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(delta, At(*backward.delta, part.queries));
    }
    TESSERA_ASSIGN_OR_RETURN(const TensorView query_gradient,
                             At(backward.query_gradient, part.queries));
    TESSERA_ASSIGN_OR_RETURN(const TensorView key_gradient,
                             At(keys, part.keys));
    TESSERA_ASSIGN_OR_RETURN(const TensorView value_gradient,
                             At(values, part.keys));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(
        op::AttendGradient{attention,
                           {output_gradient, output, log_sum_exp, delta,
                            query_gradient, key_gradient, value_gradient}}));
  }
  return absl::OkStatus();
}

// Returns the gradients of this rank's keys and values after they have passed
// all ranks. A block's gradients follow it one step later: a rank computes its
// contribution while they arrive, and adds it.
absl::StatusOr<TensorView> RingAttention::GoRound(
    const Backpropagation& backward) {
  Ops& ops = group_.ops();
  const int64_t n = group_.size();
  const int64_t sequences = backward.inputs.query.shape()[0];
  TESSERA_ASSIGN_OR_RETURN(Block block, LoadOwn(backward.inputs));
  TESSERA_ASSIGN_OR_RETURN(
      TensorView held,
      PairOf(pair_gradients_[0], statistics(), sequences, block.rank));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{0, held}));
  Pending held_comes;
  for (int64_t step = 0; step < n; ++step) {
    Pending block_comes;
    TESSERA_ASSIGN_OR_RETURN(Block next,
                             StartNextBlock(step, block, &block_comes));
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView share,
        PairOf(share_, statistics(), sequences, block.rank));
    TESSERA_ASSIGN_OR_RETURN(const TensorView keys, share.Select(0, 0));
    TESSERA_ASSIGN_OR_RETURN(const TensorView values, share.Select(0, 1));
    absl::Status status = ops.Run(op::Fill{0, share});
    if (status.ok()) status = AddShare(backward, block, keys, values);
    status.Update(held_comes.Wait());
    if (status.ok()) status = ops.Run(op::Add{share, held});
    if (!status.ok()) {
      block_comes.Wait().IgnoreError();
      return status;
    }
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView coming,
        PairOf(pair_gradients_[static_cast<size_t>((step + 1) % 2)],
               statistics(), sequences, RankAt(step + 1)));
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
  TESSERA_RETURN_IF_ERROR(ShapesFor(inputs).CheckBackward(
      inputs, output, log_sum_exp, output_gradient, gradients));
  if (inputs.first_keys.has_value()) {
    TESSERA_RETURN_IF_ERROR(ShapesFor(inputs).CheckFirstKeys(
        inputs, FirstKeysShape(inputs.query.shape()[0])));
  }
  if (group_.size() == 1) {
    TESSERA_ASSIGN_OR_RETURN(const Block block, LoadOwn(inputs));
    return AddShare({inputs, output_gradient, output, log_sum_exp,
                     /*delta=*/std::nullopt, gradients.query},
                    block, gradients.key, gradients.value);
  }
  Ops& ops = group_.ops();
  const std::vector<int64_t> shape(output.shape().begin(),
                                   output.shape().end());
  ConstTensorView sum = output;
  if (statistics() != options_.dtype) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView wide,
                             output_.Get(statistics(), shape));
    TESSERA_RETURN_IF_ERROR(ops.Run(op::Cast{output, wide}));
    sum = wide;
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView delta,
                           delta_.Get(statistics(), std::span(shape).first(3)));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::RowDots{sum, output_gradient, delta}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView query_gradient,
                           query_gradient_.Get(statistics(), shape));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{0, query_gradient}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView pair,
                           GoRound({inputs, output_gradient, sum, log_sum_exp,
                                    delta, query_gradient}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key_gradient, pair.Select(0, 0));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value_gradient, pair.Select(0, 1));
  TESSERA_RETURN_IF_ERROR(Store(ops, query_gradient, gradients.query));
  TESSERA_RETURN_IF_ERROR(Store(ops, key_gradient, gradients.key));
  return Store(ops, value_gradient, gradients.value);
}

}  // namespace tessera::tensor_parallel
