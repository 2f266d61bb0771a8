#include "tensor_parallel/blocks/attention.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device/staging.h"
#include "base/status_macros.h"
#include "tensor_parallel/context/ring_attention.h"
#include "tensor_parallel/context/ulysses_attention.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

namespace {

constexpr int64_t kQuery = 0;
constexpr int64_t kKey = 1;
constexpr int64_t kValue = 2;

absl::Status CheckOptions(const AttentionOptions& options) {
  if (options.window < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", options.window,
                     " keys; give 1 or more, or 0 for no window"));
  }
  const bool odd = options.rotary.has_value() &&
                   options.rotary->TurnedOf(options.head_size) % 2 != 0;
  if (options.width < 0 || odd) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention of width ", options.width, " with heads of ",
        options.head_size,
        " elements; give a width of 0 or more, and an even number of elements "
        "where positions are rotary"));
  }
  if (!options.rotary.has_value()) return absl::OkStatus();
  return Annotate(options.rotary->Validate(options.head_size), "rotary");
}

absl::Status CheckCore(const ContextAttention& core,
                       const ContextAttentionOptions& wanted,
                       const SequenceLayout& layout, int64_t rank) {
  const ContextAttentionOptions& given = core.options();
  if (given.heads != wanted.heads || given.kv_heads != wanted.kv_heads ||
      given.head_size != wanted.head_size || given.dtype != wanted.dtype ||
      given.causal != wanted.causal || given.cap != wanted.cap ||
      (wanted.scale.has_value() && given.scale != wanted.scale)) {
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

template <typename Core>
absl::StatusOr<std::shared_ptr<ContextAttention>> MakeCore(
    const ContextGroup& context, const ContextAttentionOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(
      Core core, Core::Create(context.group, context.layout, options));
  return std::make_shared<Core>(std::move(core));
}

absl::StatusOr<std::shared_ptr<ContextAttention>> CoreOf(
    const ContextGroup& context, const ContextAttentionOptions& options) {
  if (options.heads == 0) return std::shared_ptr<ContextAttention>();
  if (context.core != nullptr) {
    TESSERA_RETURN_IF_ERROR(CheckCore(*context.core, options, context.layout,
                                      context.group.rank()));
    return context.core;
  }
  return context.algorithm == ContextAlgorithm::kRing
             ? MakeCore<RingAttention>(context, options)
             : MakeCore<UlyssesAttention>(context, options);
}

absl::StatusOr<FusedPartition> QkvPartition(const TensorGroup& group,
                                            const AttentionOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<FusedPart> parts,
                           QkvParts(options.heads, options.kv_heads,
                                    options.head_size, group.size()));
  return FusedPartition::Create(parts, group.size());
}

// The options of a norm over all heads of queries or keys.
NormOptions SharedNorm(const FusedPartition& partition, int64_t part,
                       int64_t rank) {
  const int64_t begin = partition.RangeOf(part, 0).begin;
  int64_t all = 0;
  for (int64_t i = 0; i < partition.ranks(); ++i) {
    all += partition.RangeOf(part, i).size();
  }
  const IndexRange mine = partition.RangeOf(part, rank);
  const int64_t width = partition.parts()[static_cast<size_t>(part)].size;
  return {.width = width,
          .columns = IndexRange{mine.begin - begin, mine.end - begin},
          .copies = all / width};
}

// The norms of queries and keys; none without qk_norm.
absl::StatusOr<std::vector<RmsNorm>> QkNorms(const TensorGroup& group,
                                             const AttentionOptions& options,
                                             const FusedPartition& partition) {
  std::vector<RmsNorm> norms;
  if (!options.qk_norm) return norms;
  for (const int64_t part : {kQuery, kKey}) {
    // Each rank has some of the heads, so the weight's gradient must be summed.
    NormOptions norm = {.width = options.head_size, .rows_are_heads = true};
    if (options.shared_qk_norm) {
      norm = SharedNorm(partition, part, group.rank());
    }
    norm.epsilon = options.norm_epsilon;
    norm.dtype = options.dtype;
    TESSERA_ASSIGN_OR_RETURN(RmsNorm made, RmsNorm::Create(group, norm));
    norms.push_back(std::move(made));
  }
  return norms;
}

// The sinks of the rank's heads; none without sinks.
absl::StatusOr<std::optional<Parameter>> SinksOf(
    const TensorGroup& group, const AttentionOptions& options,
    const FusedPartition& partition) {
  if (!options.sinks) return std::optional<Parameter>();
  const IndexRange rows = partition.RangeOf(kQuery, group.rank());
  const int64_t d = options.head_size;
  TESSERA_ASSIGN_OR_RETURN(
      Parameter sinks,
      Parameter::Create(group, {.name = "sinks",
                                .shape = {options.heads},
                                .rows = {{{rows.begin / d, rows.end / d}}},
                                .dtype = options.dtype}));
  return std::optional(std::move(sinks));
}

absl::Status CheckHeld(const PooledTensor& tensor, const char* pass) {
  if (tensor.held()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Attention::", pass,
                   " of activations that the pass before it has not filled"));
}

}  // namespace

int64_t AttentionActivations::bytes() const {
  return query.bytes() + key.bytes() + value.bytes() + output.bytes() +
         log_sum_exp.bytes() + qkv_gradient.bytes() + sinks_gradient.bytes() +
         query_norm.bytes() + key_norm.bytes();
}

void AttentionActivations::Clear() {
  for (PooledTensor* tensor : {&query, &key, &value, &output, &log_sum_exp,
                               &qkv_gradient, &sinks_gradient}) {
    tensor->Release();
  }
  query_norm.Clear();
  key_norm.Clear();
}

absl::StatusOr<std::optional<ConstTensorView>> WindowMask::Of(
    int64_t sequences) {
  if (window_ == 0) return std::optional<ConstTensorView>();
  if (!uploaded_ || uploaded_->shape()[1] < sequences) {
    const int64_t length = attention_->layout().length();
    std::vector<int64_t> first;
    for (int64_t i = 0; i < sequences * length; ++i) {
      first.push_back(std::max<int64_t>(0, i % length + 1 - window_));
    }
    const std::vector<int64_t> keys = attention_->FirstKeys(first);
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView memory,
        table_.Get(DType::kI64, attention_->FirstKeysShape(sequences)));
    StagingPool staging(group_.queue());
    TESSERA_RETURN_IF_ERROR(staging.Upload(
        std::as_bytes(std::span(keys)),
        {memory.data(), static_cast<size_t>(memory.size_in_bytes())}));
    TESSERA_RETURN_IF_ERROR(group_.queue().Synchronize());
    uploaded_ = memory;
  }
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView used,
                           uploaded_->Narrow(1, 0, sequences));
  return std::optional(used);
}

absl::StatusOr<ConstTensorView> TokenPositions::Of(int64_t sequences) {
  const auto length = static_cast<int64_t>(positions_.size());
  const int64_t tokens = sequences * length;
  if (!uploaded_ || uploaded_->element_count() < tokens) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView memory,
                             tokens_.Get(DType::kI64, {{tokens}}));
    std::vector<int64_t> all;
    all.reserve(static_cast<size_t>(tokens));
    for (int64_t i = 0; i < sequences; ++i) {
      all.insert(all.end(), positions_.begin(), positions_.end());
    }
    StagingPool staging(group_.queue());
    TESSERA_RETURN_IF_ERROR(staging.Upload(
        std::as_bytes(std::span(all)),
        {memory.data(), static_cast<size_t>(memory.size_in_bytes())}));
    TESSERA_RETURN_IF_ERROR(group_.queue().Synchronize());
    uploaded_ = memory;
  }
  return uploaded_->Narrow(0, 0, tokens);
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
                                 .scale = options.scale,
                                 .cap = options.cap,
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
  TESSERA_ASSIGN_OR_RETURN(std::vector<RmsNorm> norms,
                           QkNorms(group, options, partition));
  TESSERA_ASSIGN_OR_RETURN(std::optional<Parameter> sinks,
                           SinksOf(group, options, partition));
  return AttentionCore(
      group, options, local, std::move(partition), context.layout.length(),
      context.layout.PositionsOf(context.group.rank()), std::move(norms),
      std::move(sinks), std::move(attention));
}

absl::StatusOr<TokenBatch> AttentionCore::BatchOf(int64_t sequences) const {
  if (sequences < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch of ", sequences, " sequences; give 0 or more"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const Partition tokens,
      Partition::Balanced(sequences * length(), group_.size()));
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
  if (!options_.rotary) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView positions,
                           positions_.Of(batch.sequences));
  return group_.ops().Run(op::Rotate{rotation_, inverse, positions, x});
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
    if (part != kValue && !norms_.empty()) {
      TESSERA_RETURN_IF_ERROR(SetNormalised(
          batch, from, norms_[static_cast<size_t>(part)],
          part == kQuery ? activations.query_norm : activations.key_norm, to));
    } else {
      TESSERA_ASSIGN_OR_RETURN(const TensorView flat, to.Reshape(from.shape()));
      TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{from, flat}));
    }
    if (part == kValue) continue;
    TESSERA_RETURN_IF_ERROR(Rotate(batch, /*inverse=*/false, to));
  }
  return absl::OkStatus();
}

absl::Status AttentionCore::SetNormalised(const TokenBatch& batch,
                                          ConstTensorView from, RmsNorm& norm,
                                          HeadNormActivations& activations,
                                          TensorView x) {
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView input,
      ReserveHeads(batch, x.shape()[1], activations.input));
  TESSERA_ASSIGN_OR_RETURN(const TensorView flat, input.Reshape(from.shape()));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{from, flat}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView rows, NormRows(input));
  TESSERA_ASSIGN_OR_RETURN(const TensorView normalised, NormRows(x));
  return norm.Forward(rows, normalised, activations.state);
}

absl::Status AttentionCore::NormGradient(RmsNorm& norm, TensorView gradient,
                                         HeadNormActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckHeld(activations.input, "BackwardInput"));
  TESSERA_ASSIGN_OR_RETURN(const TensorView rows, NormRows(gradient));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView input,
                           NormRows(ConstTensorView(activations.input.view())));
  if (norm.weight().trainable()) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView sum,
        activations.weight_gradient.Reserve(GradientDType(options_.dtype),
                                            {{norm.columns().size()}}));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Fill{0, sum}));
    TESSERA_RETURN_IF_ERROR(
        norm.WeightGradient(rows, input, activations.state, sum));
  }
  TESSERA_RETURN_IF_ERROR(
      norm.BackwardInput(rows, input, activations.state, rows));
  activations.input.Release();
  activations.state.Clear();
  return absl::OkStatus();
}

// Adds a micro-batch's share, and releases it.
absl::Status AttentionCore::AddShare(PooledTensor& share, TensorView gradient) {
  TESSERA_RETURN_IF_ERROR(CheckHeld(share, "BackwardWeight"));
  if (gradient.dtype() == share.view().dtype()) {
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Add{share.view(), gradient}));
  } else {
    PooledTensor rounded(share.pool());
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView narrow,
        rounded.Reserve(gradient.dtype(), gradient.shape()));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Cast{share.view(), narrow}));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Add{narrow, gradient}));
  }
  share.Release();
  return absl::OkStatus();
}

absl::Status AttentionCore::BackwardWeight(AttentionActivations& activations) {
  for (size_t i = 0; i < norms_.size(); ++i) {
    if (!norms_[i].weight().trainable()) continue;
    const IndexRange columns = norms_[i].columns();
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView gradient,
        norms_[i].weight().gradient().Narrow(0, columns.begin, columns.size()));
    TESSERA_RETURN_IF_ERROR(
        AddShare(i == kQuery ? activations.query_norm.weight_gradient
                             : activations.key_norm.weight_gradient,
                 gradient));
  }
  if (!sinks_ || !sinks_->trainable() || attention_ == nullptr) {
    return absl::OkStatus();
  }
  return AddShare(activations.sinks_gradient, sinks_->gradient());
}

absl::Status AttentionCore::FinishGradients() {
  for (RmsNorm& norm : norms_) TESSERA_RETURN_IF_ERROR(norm.FinishGradients());
  return absl::OkStatus();
}

absl::StatusOr<ContextAttention::Inputs> AttentionCore::InputsOf(
    const TokenBatch& batch, const AttentionActivations& activations) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView query,
                           BySequence(batch, activations.query.view()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key,
                           BySequence(batch, activations.key.view()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value,
                           BySequence(batch, activations.value.view()));
  std::optional<ConstTensorView> first_keys = activations.first_keys;
  if (!first_keys.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(first_keys, mask_.Of(batch.sequences));
  }
  return ContextAttention::Inputs{query, key, value, first_keys};
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
  TESSERA_ASSIGN_OR_RETURN(const ContextAttention::Inputs inputs,
                           InputsOf(batch, activations));
  TESSERA_ASSIGN_OR_RETURN(const TensorView o, BySequence(batch, output));
  TESSERA_ASSIGN_OR_RETURN(const TensorView lse,
                           BySequence(batch, log_sum_exp));
  TESSERA_RETURN_IF_ERROR(attention_->Forward(inputs, o, lse));
  return ApplySinks(output, log_sum_exp, activations.output.pool());
}

// Adds the sinks to `log_sum_exp` [tokens, heads], and multiplies `output`
// [tokens, heads, d] accordingly.
absl::Status AttentionCore::ApplySinks(TensorView output,
                                       TensorView log_sum_exp,
                                       TensorPool& pool) {
  if (!sinks_) return absl::OkStatus();
  PooledTensor memory(pool);
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView factors,
      memory.Reserve(log_sum_exp.dtype(), log_sum_exp.shape()));
  TESSERA_RETURN_IF_ERROR(
      group_.ops().Run(op::AddSinks{sinks_->value(), log_sum_exp, factors}));
  const int64_t rows = factors.element_count();
  TESSERA_ASSIGN_OR_RETURN(const TensorView scales, factors.Reshape({{rows}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView heads,
                           output.Reshape({{rows, options_.head_size}}));
  return group_.ops().Run(op::ScaleRows{scales, heads, heads});
}

// Sets the rank's share of the gradient of the sinks, from the gradient of the
// output, [tokens, heads, d].
absl::Status AttentionCore::SetSinksGradient(
    ConstTensorView output_gradient, AttentionActivations& activations) {
  if (!sinks_ || !sinks_->trainable()) return absl::OkStatus();
  const TensorView log_sum_exp = activations.log_sum_exp.view();
  PooledTensor memory(activations.output.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView shares,
      memory.Reserve(log_sum_exp.dtype(), log_sum_exp.shape()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView sum,
                           activations.sinks_gradient.Reserve(
                               log_sum_exp.dtype(), {{local_.heads}}));
  Ops& ops = group_.ops();
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::RowDots{activations.output.view(), output_gradient, shares}));
  TESSERA_RETURN_IF_ERROR(
      ops.Run(op::SinkGradients{sinks_->value(), log_sum_exp, shares}));
  TESSERA_RETURN_IF_ERROR(ops.Run(op::Fill{0, sum}));
  return ops.Run(op::SumRows{shares, sum});
}

// Copies the gradients of query, key and value, rotated back, into the gradient
// of the projection.
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
    if (part != kValue && !norms_.empty()) {
      TESSERA_RETURN_IF_ERROR(NormGradient(
          norms_[static_cast<size_t>(part)], parts[part],
          part == kQuery ? activations.query_norm : activations.key_norm));
    }
    TESSERA_ASSIGN_OR_RETURN(const TensorView to, PartOf(whole, part));
    TESSERA_ASSIGN_OR_RETURN(const TensorView flat,
                             parts[part].Reshape(to.shape()));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{flat, to}));
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
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Fill{0, dk}));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Fill{0, dv}));
  } else {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                             output_gradient.Reshape(dq.shape()));
    TESSERA_RETURN_IF_ERROR(SetSinksGradient(gradient, activations));
    TESSERA_RETURN_IF_ERROR(
        Propagate(batch, gradient, activations, {dq, dk, dv}));
  }
  activations.query.Release();
  activations.key.Release();
  activations.value.Release();
  activations.log_sum_exp.Release();
  return SetQkvGradient(batch, {dq, dk, dv}, activations);
}

absl::Status AttentionCore::Propagate(
    const TokenBatch& batch, ConstTensorView output_gradient,
    const AttentionActivations& activations,
    const ContextAttention::Gradients& gradients) {
  TESSERA_ASSIGN_OR_RETURN(const ContextAttention::Inputs inputs,
                           InputsOf(batch, activations));
  TESSERA_ASSIGN_OR_RETURN(const TensorView o,
                           BySequence(batch, activations.output.view()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView lse,
                           BySequence(batch, activations.log_sum_exp.view()));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                           BySequence(batch, output_gradient));
  TESSERA_ASSIGN_OR_RETURN(const TensorView dq,
                           BySequence(batch, gradients.query));
  TESSERA_ASSIGN_OR_RETURN(const TensorView dk,
                           BySequence(batch, gradients.key));
  TESSERA_ASSIGN_OR_RETURN(const TensorView dv,
                           BySequence(batch, gradients.value));
  return attention_->Backward(inputs, o, lse, gradient, {dq, dk, dv});
}

absl::StatusOr<Attention> Attention::Create(const TensorGroup& group,
                                            const ContextGroup& context,
                                            const AttentionOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(AttentionCore core,
                           AttentionCore::Create(group, context, options));
  const FusedPartition& partition = core.partition();
  TESSERA_ASSIGN_OR_RETURN(
      auto qkv, ColumnParallelLinear::Create(group, {.in = options.width,
                                                     .out = partition.size(),
                                                     .bias = options.qkv_bias,
                                                     .dtype = options.dtype,
                                                     .fp8 = options.fp8,
                                                     .parts = partition.parts(),
                                                     .lora = options.lora}));
  TESSERA_ASSIGN_OR_RETURN(
      auto output, RowParallelLinear::Create(
                       group, {.in = options.heads * options.head_size,
                               .out = options.width,
                               .columns = partition.RangeOf(0, group.rank()),
                               .bias = options.output_bias,
                               .dtype = options.dtype,
                               .fp8 = options.fp8,
                               .lora = options.lora}));
  return Attention(group, options, std::move(core), std::move(qkv),
                   std::move(output));
}

void Attention::AppendParameters(std::string_view prefix,
                                 std::vector<Parameter*>& parameters) {
  qkv_.AppendParameters(ParameterName(prefix, "qkv"), parameters);
  output_.AppendParameters(ParameterName(prefix, "output"), parameters);
  if (Parameter* const sinks = core_.sinks()) {
    sinks->Rename(ParameterName(prefix, "sinks"));
    parameters.push_back(sinks);
  }
  if (core_.norms().empty()) return;
  core_.norms()[kQuery].AppendParameters(ParameterName(prefix, "query_norm"),
                                         parameters);
  core_.norms()[kKey].AppendParameters(ParameterName(prefix, "key_norm"),
                                       parameters);
}

absl::Status Attention::CheckValues() {
  for (RmsNorm& norm : core_.norms()) {
    TESSERA_RETURN_IF_ERROR(norm.weight().CheckValue());
  }
  if (Parameter* const sinks = core_.sinks()) {
    TESSERA_RETURN_IF_ERROR(sinks->CheckValue());
  }
  TESSERA_RETURN_IF_ERROR(qkv_.CheckValues());
  return output_.CheckValues();
}

absl::Status Attention::CheckGradients() {
  for (RmsNorm& norm : core_.norms()) {
    TESSERA_RETURN_IF_ERROR(norm.weight().CheckGradient());
  }
  if (Parameter* const sinks = core_.sinks()) {
    TESSERA_RETURN_IF_ERROR(sinks->CheckGradient());
  }
  TESSERA_RETURN_IF_ERROR(qkv_.CheckGradients());
  return output_.CheckGradients();
}

// The core's output, shaped as the input of the output projection.
absl::StatusOr<ConstTensorView> Attention::OutputOf(
    const AttentionActivations& activations) const {
  const ConstTensorView output = activations.output.view();
  return output.Reshape({{output.shape()[0], output_.local_in()}});
}

absl::Status Attention::Forward(const TokenBatch& batch, ConstTensorView x,
                                TensorView y,
                                AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  PooledTensor memory(activations.query.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView qkv,
      memory.Reserve(options_.dtype,
                     {{batch.tokens.size(), qkv_.local_out()}}));
  TESSERA_RETURN_IF_ERROR(qkv_.Forward(batch.tokens, x, qkv));
  TESSERA_RETURN_IF_ERROR(core_.SetHeads(batch, qkv, activations));
  memory.Release();
  TESSERA_RETURN_IF_ERROR(core_.Attend(batch, activations));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output, OutputOf(activations));
  return output_.Forward(batch.tokens, output, y);
}

// Recomputes a result of the forward that was not kept.
absl::Status Attention::AttendAgain(const TokenBatch& batch,
                                    AttentionActivations& activations) {
  return activations.output.held() ? absl::OkStatus()
                                   : core_.Attend(batch, activations);
}

absl::Status Attention::BackwardInput(const TokenBatch& batch,
                                      ConstTensorView y_gradient,
                                      TensorView x_gradient,
                                      AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckHeld(activations.query, "BackwardInput"));
  TESSERA_RETURN_IF_ERROR(AttendAgain(batch, activations));
  PooledTensor memory(activations.query.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView output_gradient,
      memory.Reserve(options_.dtype,
                     {{batch.tokens.size(), output_.local_in()}}));
  TESSERA_RETURN_IF_ERROR(
      output_.BackwardInput(batch.tokens, y_gradient, output_gradient));
  TESSERA_RETURN_IF_ERROR(core_.Backward(batch, output_gradient, activations));
  memory.Release();
  return qkv_.BackwardInput(batch.tokens, activations.qkv_gradient.view(),
                            x_gradient);
}

absl::Status Attention::BackwardWeight(const TokenBatch& batch,
                                       ConstTensorView y_gradient,
                                       ConstTensorView x,
                                       AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(
      CheckHeld(activations.qkv_gradient, "BackwardWeight"));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output, OutputOf(activations));
  TESSERA_RETURN_IF_ERROR(
      output_.BackwardWeight(batch.tokens, y_gradient, output));
  activations.output.Release();
  TESSERA_RETURN_IF_ERROR(core_.BackwardWeight(activations));
  TESSERA_RETURN_IF_ERROR(
      qkv_.BackwardWeight(batch.tokens, activations.qkv_gradient.view(), x));
  activations.Clear();
  return absl::OkStatus();
}

absl::Status Attention::Backward(const TokenBatch& batch,
                                 ConstTensorView y_gradient, ConstTensorView x,
                                 TensorView x_gradient,
                                 AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(CheckHeld(activations.query, "Backward"));
  TESSERA_RETURN_IF_ERROR(AttendAgain(batch, activations));
  PooledTensor memory(activations.query.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView output_gradient,
      memory.Reserve(options_.dtype,
                     {{batch.tokens.size(), output_.local_in()}}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output, OutputOf(activations));
  TESSERA_RETURN_IF_ERROR(
      output_.Backward(batch.tokens, y_gradient, output, output_gradient));
  TESSERA_RETURN_IF_ERROR(core_.Backward(batch, output_gradient, activations));
  memory.Release();
  activations.output.Release();
  TESSERA_RETURN_IF_ERROR(core_.BackwardWeight(activations));
  TESSERA_RETURN_IF_ERROR(qkv_.Backward(
      batch.tokens, activations.qkv_gradient.view(), x, x_gradient));
  activations.Clear();
  return absl::OkStatus();
}

absl::Status Attention::FinishGradients() {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(qkv_.FinishGradients());
  TESSERA_RETURN_IF_ERROR(output_.FinishGradients());
  return core_.FinishGradients();
}

}  // namespace tessera::tensor_parallel
