#include "tensor_parallel/blocks/attention_core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/context/ring_attention.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::tensor_parallel {
namespace {

constexpr int64_t kQuery = 0;
constexpr int64_t kKey = 1;
constexpr int64_t kValue = 2;

absl::Status CheckOptions(const AttentionOptions& options) {
  const bool odd =
      options.rotary_base.has_value() && options.head_size % 2 != 0;
  if (options.width >= 0 && !odd) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "attention of width ", options.width, " with heads of ",
      options.head_size,
      " elements; give a width of 0 or more, and an even number of elements "
      "where positions are rotary"));
}

absl::Status CheckCore(const ContextAttention& core,
                       const ContextAttentionOptions& wanted,
                       const SequenceLayout& layout, int64_t rank) {
  const ContextAttentionOptions& given = core.options();
  if (given.heads != wanted.heads || given.kv_heads != wanted.kv_heads ||
      given.head_size != wanted.head_size || given.dtype != wanted.dtype ||
      given.causal != wanted.causal) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a core of ", given.heads, " heads of ", given.head_size, " ",
        DTypeName(given.dtype), ", ", given.kv_heads,
        " of keys and values, where the rank has ", wanted.heads, " of ",
        wanted.head_size, " ", DTypeName(wanted.dtype), " and ",
        wanted.kv_heads, "; make it of Attention::CoreOptions"));
  }
  if (core.layout().ranks() == layout.ranks() &&
      core.layout().PositionsOf(rank) == layout.PositionsOf(rank)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a core of another layout of ", core.layout().length(),
                   " positions than the context group's, of ", layout.length(),
                   "; give it the same"));
}

absl::Status CheckContext(const ContextGroup& context) {
  if (context.layout.ranks() == context.group.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a sequence is laid out for ", context.layout.ranks(),
                   " ranks; the context group has ", context.group.size()));
}

absl::StatusOr<std::shared_ptr<ContextAttention>> CoreOf(
    const ContextGroup& context, const ContextAttentionOptions& options) {
  if (options.heads == 0) return std::shared_ptr<ContextAttention>();
  if (context.core != nullptr) {
    TESSERA_RETURN_IF_ERROR(CheckCore(*context.core, options, context.layout,
                                      context.group.rank()));
    return context.core;
  }
  TESSERA_ASSIGN_OR_RETURN(
      RingAttention ring,
      RingAttention::Create(context.group, context.layout, options));
  return std::make_shared<RingAttention>(std::move(ring));
}

absl::StatusOr<FusedPartition> QkvPartition(const TensorGroup& group,
                                            const AttentionOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<FusedPart> parts,
                           QkvParts(options.heads, options.kv_heads,
                                    options.head_size, group.size()));
  return FusedPartition::Create(parts, group.size());
}

}  // namespace

int64_t AttentionActivations::bytes() const {
  return query.bytes() + key.bytes() + value.bytes() + output.bytes() +
         log_sum_exp.bytes() + qkv_gradient.bytes();
}

void AttentionActivations::Clear() {
  for (PooledTensor* tensor :
       {&query, &key, &value, &output, &log_sum_exp, &qkv_gradient}) {
    tensor->Release();
  }
}

absl::StatusOr<ContextAttentionOptions> AttentionCore::OptionsOf(
    const TensorGroup& group, const AttentionOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const FusedPartition partition,
                           QkvPartition(group, options));
  const auto heads = [&](int64_t part) {
    return partition.RangeOf(part, group.rank()).size() / options.head_size;
  };
  return ContextAttentionOptions{.heads = heads(kQuery),
                                 .kv_heads = heads(kKey),
                                 .head_size = options.head_size,
                                 .causal = options.causal,
                                 .dtype = options.dtype};
}

absl::StatusOr<AttentionCore> AttentionCore::Create(
    const TensorGroup& group, const ContextGroup& context,
    const AttentionOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  TESSERA_RETURN_IF_ERROR(CheckContext(context));
  TESSERA_ASSIGN_OR_RETURN(FusedPartition partition,
                           QkvPartition(group, options));
  TESSERA_ASSIGN_OR_RETURN(const ContextAttentionOptions local,
                           OptionsOf(group, options));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<ContextAttention> attention,
                           CoreOf(context, local));
  return AttentionCore(group, options, local, std::move(partition),
                       context.layout.PositionsOf(context.group.rank()),
                       std::move(attention));
}

absl::StatusOr<TokenBatch> AttentionCore::BatchOf(int64_t sequences) const {
  if (sequences < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch of ", sequences, " sequences; give 0 or more"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const Partition tokens,
      Partition::Balanced(sequences * static_cast<int64_t>(positions_.size()),
                          group_.size()));
  return TokenBatch{sequences, tokens};
}

absl::StatusOr<TensorView> AttentionCore::PartOf(TensorView qkv,
                                                 int64_t part) const {
  const IndexRange columns = partition_.LocalRange(part, group_.rank());
  return qkv.Narrow(1, columns.begin, columns.size());
}

absl::StatusOr<TensorView> AttentionCore::ReserveHeads(
    const TokenBatch& batch, int64_t heads, PooledTensor& memory) const {
  return memory.Reserve(options_.dtype,
                        {{batch.tokens.size(), heads, options_.head_size}});
}

absl::Status AttentionCore::Rotate(const TokenBatch& batch, bool inverse,
                                   TensorView x) {
  if (!options_.rotary_base) return absl::OkStatus();
  const auto length = static_cast<int64_t>(positions_.size());
  for (int64_t i = 0; i < batch.sequences; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView sequence,
                             x.Narrow(0, i * length, length));
    TESSERA_RETURN_IF_ERROR(group_.ops().Rotate(*options_.rotary_base, inverse,
                                                positions_, sequence));
  }
  return absl::OkStatus();
}

absl::Status AttentionCore::SetHeads(const TokenBatch& batch, TensorView qkv,
                                     AttentionActivations& activations) {
  PooledTensor* const targets[] = {&activations.query, &activations.key,
                                   &activations.value};
  for (const int64_t part : {kQuery, kKey, kValue}) {
    const int64_t heads = part == kQuery ? local_.heads : local_.kv_heads;
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             ReserveHeads(batch, heads, *targets[part]));
    TESSERA_ASSIGN_OR_RETURN(const TensorView from, PartOf(qkv, part));
    TESSERA_ASSIGN_OR_RETURN(const TensorView flat, to.Reshape(from.shape()));
    TESSERA_RETURN_IF_ERROR(group_.ops().Copy(from, flat));
    if (part == kValue) continue;
    TESSERA_RETURN_IF_ERROR(Rotate(batch, /*inverse=*/false, to));
  }
  return absl::OkStatus();
}

absl::Status AttentionCore::Attend(const TokenBatch& batch,
                                   AttentionActivations& activations) {
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView output,
      ReserveHeads(batch, local_.heads, activations.output));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView log_sum_exp,
      activations.log_sum_exp.Reserve(GradientDType(options_.dtype),
                                      {{batch.tokens.size(), local_.heads}}));
  if (attention_ == nullptr) return absl::OkStatus();
  const auto length = static_cast<int64_t>(positions_.size());
  for (int64_t i = 0; i < batch.sequences; ++i) {
    const auto sequence = [&](const TensorView& x) {
      return x.Narrow(0, i * length, length);
    };
    TESSERA_ASSIGN_OR_RETURN(const TensorView q,
                             sequence(activations.query.view()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView k,
                             sequence(activations.key.view()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView v,
                             sequence(activations.value.view()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView o, sequence(output));
    TESSERA_ASSIGN_OR_RETURN(const TensorView lse, sequence(log_sum_exp));
    TESSERA_RETURN_IF_ERROR(attention_->Forward({q, k, v}, o, lse));
  }
  return absl::OkStatus();
}

// Copies the gradients of the three, turned back, into that of the projection.
absl::Status AttentionCore::SetQkvGradient(
    const TokenBatch& batch, const ContextAttention::Gradients& gradients,
    AttentionActivations& activations) {
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView whole,
      activations.qkv_gradient.Reserve(
          options_.dtype,
          {{batch.tokens.size(), partition_.SizeOf(group_.rank())}}));
  const TensorView parts[] = {gradients.query, gradients.key, gradients.value};
  for (const int64_t part : {kQuery, kKey, kValue}) {
    if (part != kValue) {
      TESSERA_RETURN_IF_ERROR(Rotate(batch, /*inverse=*/true, parts[part]));
    }
    TESSERA_ASSIGN_OR_RETURN(const TensorView to, PartOf(whole, part));
    TESSERA_ASSIGN_OR_RETURN(const TensorView flat,
                             parts[part].Reshape(to.shape()));
    TESSERA_RETURN_IF_ERROR(group_.ops().Copy(flat, to));
  }
  return absl::OkStatus();
}

absl::Status AttentionCore::Backward(const TokenBatch& batch,
                                     ConstTensorView output_gradient,
                                     AttentionActivations& activations) {
  TensorPool& pool = activations.query.pool();
  PooledTensor query(pool), key(pool), value(pool);
  TESSERA_ASSIGN_OR_RETURN(const TensorView dq,
                           ReserveHeads(batch, local_.heads, query));
  TESSERA_ASSIGN_OR_RETURN(const TensorView dk,
                           ReserveHeads(batch, local_.kv_heads, key));
  TESSERA_ASSIGN_OR_RETURN(const TensorView dv,
                           ReserveHeads(batch, local_.kv_heads, value));
  if (attention_ == nullptr) {
    TESSERA_RETURN_IF_ERROR(group_.ops().Fill(0, dk));
    TESSERA_RETURN_IF_ERROR(group_.ops().Fill(0, dv));
  } else {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                             output_gradient.Reshape(dq.shape()));
    TESSERA_RETURN_IF_ERROR(
        Propagate(batch, gradient, activations, {dq, dk, dv}));
  }
  activations.query.Release();
  activations.key.Release();
  activations.value.Release();
  activations.log_sum_exp.Release();
  return SetQkvGradient(batch, {dq, dk, dv}, activations);
}

// Sequence by sequence.
absl::Status AttentionCore::Propagate(
    const TokenBatch& batch, ConstTensorView output_gradient,
    const AttentionActivations& activations,
    const ContextAttention::Gradients& gradients) {
  const auto length = static_cast<int64_t>(positions_.size());
  for (int64_t i = 0; i < batch.sequences; ++i) {
    const auto sequence = [&](const auto& x) {
      return x.Narrow(0, i * length, length);
    };
    TESSERA_ASSIGN_OR_RETURN(const TensorView q,
                             sequence(activations.query.view()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView k,
                             sequence(activations.key.view()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView v,
                             sequence(activations.value.view()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView o,
                             sequence(activations.output.view()));
    TESSERA_ASSIGN_OR_RETURN(const TensorView lse,
                             sequence(activations.log_sum_exp.view()));
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                             sequence(output_gradient));
    TESSERA_ASSIGN_OR_RETURN(const TensorView dq, sequence(gradients.query));
    TESSERA_ASSIGN_OR_RETURN(const TensorView dk, sequence(gradients.key));
    TESSERA_ASSIGN_OR_RETURN(const TensorView dv, sequence(gradients.value));
    TESSERA_RETURN_IF_ERROR(
        attention_->Backward({q, k, v}, o, lse, gradient, {dq, dk, dv}));
  }
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel
