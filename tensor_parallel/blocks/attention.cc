#include "tensor_parallel/blocks/attention.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device/staging.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"
#include "base/tensor/tensor.h"
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

absl::Status CheckLatent(const AttentionOptions& options) {
  const LatentOptions& latent = options.latent;
  if (options.head_size != latent.head_size() ||
      options.kv_heads != options.heads || latent.value > options.head_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "latent attention of ", options.heads, " heads of ", options.head_size,
        " elements, ", options.kv_heads,
        " of keys and values, whose parts have ", latent.nope, " and ",
        latent.rope, " elements and values ", latent.value,
        "; give as many heads of keys, parts that add up to a head, and values "
        "that are not larger"));
  }
  if (options.qkv_bias || options.output_bias || options.qk_norm) {
    return absl::UnimplementedError(
        "latent attention has no biases and norms of heads; leave them out");
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const AttentionOptions& options) {
  if (options.window < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", options.window,
                     " keys; give 1 or more, or 0 for no window"));
  }
  const bool odd = options.rotary.has_value() &&
                   options.rotary->TurnedOf(options.rotary_size()) % 2 != 0;
  if (options.width < 0 || odd) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention of width ", options.width, " with heads of ",
        options.head_size,
        " elements; give a width of 0 or more, and an even number of elements "
        "where positions are rotary"));
  }
  if (options.is_latent()) TESSERA_RETURN_IF_ERROR(CheckLatent(options));
  if (!options.rotary.has_value()) return absl::OkStatus();
  return Annotate(options.rotary->Validate(options.rotary_size()), "rotary");
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
  if (options.is_latent()) {
    // All three are divided alike.
    const FusedPart part = HeadsPart(options.heads, options.head_size);
    return FusedPartition::Create({{part, part, part}}, group.size());
  }
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

absl::StatusOr<ConstTensorView> RotaryTables::Of(const Rotation& rotation,
                                                 DType dtype) {
  const DType statistics = GradientDType(dtype);
  for (const Table& table : tables_) {
    if (table.rotation == rotation && table.values.dtype() == statistics) {
      return ConstTensorView(table.values.view());
    }
  }
  const Dims shape = {static_cast<int64_t>(positions_.size()),
                      2 * static_cast<int64_t>(rotation.frequencies.size())};
  TESSERA_ASSIGN_OR_RETURN(Tensor values,
                           Tensor::Create(statistics, shape, group_.memory()));
  const TensorView view = values.view();
  const auto bytes = static_cast<size_t>(view.size_in_bytes());
  StagingPool staging(group_.queue());
  TESSERA_ASSIGN_OR_RETURN(const StagedUpload upload, staging.Stage(bytes));
  if (group_.ops().computes()) {
    TESSERA_ASSIGN_OR_RETURN(
        const TensorView staged,
        TensorView::Create(upload.bytes(), statistics, shape));
    SetRotaryTable(rotation, positions_, staged);
  }
  TESSERA_RETURN_IF_ERROR(staging.Send(upload, {view.data(), bytes}));
  TESSERA_RETURN_IF_ERROR(group_.queue().Synchronize());
  tables_.push_back({rotation, std::move(values)});
  return ConstTensorView(view);
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
  return AttentionCore(group, context, options, local, std::move(partition),
                       std::move(norms), std::move(sinks),
                       std::move(attention));
}

absl::StatusOr<TokenBatch> AttentionCore::BatchOf(int64_t sequences) const {
  if (sequences < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch of ", sequences, " sequences; give 0 or more"));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const Partition tokens,
      Partition::Balanced(sequences * positions_, group_.size()));
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

absl::Status AttentionCore::Rotate(bool inverse, TensorView x) {
  if (!options_.rotary) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView table,
                           rotary_->Of(rotation_, options_.dtype));
  return group_.ops().Run(op::Rotate{inverse, table, x});
}

absl::Status AttentionCore::MoveLatent(TensorView fused, const Heads& heads,
                                       bool back) {
  const LatentOptions& latent = options_.latent;
  const int64_t d = options_.head_size, kv = latent.nope + latent.value;
  const int64_t kv_begin = local_.heads * d;
  struct Move {
    TensorView part;
    HeadColumns in_fused, in_part;
  };
  const Move moves[] = {
      {heads.query, {0, d, latent.nope}, {latent.rope, d, latent.nope}},
      {heads.query,
       {latent.nope, d, latent.rope, latent.interleaved},
       {0, d, latent.rope}},
      {heads.key, {kv_begin, kv, latent.nope}, {latent.rope, d, latent.nope}},
      {heads.value,
       {kv_begin + latent.nope, kv, latent.value},
       {0, d, latent.value}}};
  for (const Move& move : moves) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView columns,
                             HeadsAt(fused, local_.heads, move.in_fused));
    TESSERA_ASSIGN_OR_RETURN(const TensorView part,
                             HeadsAt(move.part, local_.heads, move.in_part));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(back ? op::Copy{part, columns}
                                                  : op::Copy{columns, part}));
  }
  return absl::OkStatus();
}

absl::Status AttentionCore::SetLatentHeads(const TokenBatch& batch,
                                           TensorView fused,
                                           AttentionActivations& activations) {
  const LatentOptions& latent = options_.latent;
  const int64_t d = options_.head_size, heads = local_.heads;
  TESSERA_ASSIGN_OR_RETURN(const TensorView query,
                           ReserveHeads(batch, heads, activations.query));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key,
                           ReserveHeads(batch, heads, activations.key));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value,
                           ReserveHeads(batch, heads, activations.value));
  if (latent.value < d) {
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Fill{0, value}));
  }
  TESSERA_RETURN_IF_ERROR(
      MoveLatent(fused, {query, key, value}, /*back=*/false));
  TESSERA_RETURN_IF_ERROR(Rotate(/*inverse=*/false, query));
  // All heads of keys have the same rotated part.
  PooledTensor memory(activations.query.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView rope,
      memory.Reserve(options_.dtype, {{batch.tokens.size(), 1, latent.rope}}));
  const int64_t begin = fused_size() - latent.rope;
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView from,
      HeadsAt(fused, 1, {begin, 0, latent.rope, latent.interleaved}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView packed,
                           HeadsAt(rope, 1, {0, 0, latent.rope}));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{from, packed}));
  TESSERA_RETURN_IF_ERROR(Rotate(/*inverse=*/false, rope));
  TESSERA_ASSIGN_OR_RETURN(const TensorView repeated,
                           HeadsAt(rope, heads, {0, 0, latent.rope}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView in_keys,
                           HeadsAt(key, heads, {0, d, latent.rope}));
  return group_.ops().Run(op::Copy{repeated, in_keys});
}

// Sets the gradient of the projection from those of the heads, which it
// overwrites.
absl::Status AttentionCore::SetLatentGradient(const TokenBatch& batch,
                                              const Heads& gradients,
                                              TensorView fused,
                                              TensorPool& pool) {
  const LatentOptions& latent = options_.latent;
  TESSERA_RETURN_IF_ERROR(Rotate(/*inverse=*/true, gradients.query));
  TESSERA_RETURN_IF_ERROR(MoveLatent(fused, gradients, /*back=*/true));
  const int64_t begin = fused_size() - latent.rope;
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView to,
      HeadsAt(fused, 1, {begin, 0, latent.rope, latent.interleaved}));
  if (local_.heads == 0) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView columns,
                             fused.Narrow(1, begin, latent.rope));
    return group_.ops().Run(op::Fill{0, columns});
  }
  // The sum of the heads' gradients: half of them are added to the others.
  PooledTensor memory(pool);
  const int64_t tokens = batch.tokens.size();
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView ropes,
      memory.Reserve(options_.dtype, {{local_.heads, tokens, latent.rope}}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView in_keys,
                           gradients.key.Narrow(2, 0, latent.rope));
  TESSERA_ASSIGN_OR_RETURN(const TensorView by_head, in_keys.Transpose(0, 1));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{by_head, ropes}));
  for (int64_t count = local_.heads; count > 1; count -= count / 2) {
    const int64_t half = count / 2;
    TESSERA_ASSIGN_OR_RETURN(const TensorView sums, ropes.Narrow(0, 0, half));
    TESSERA_ASSIGN_OR_RETURN(const TensorView others,
                             ropes.Narrow(0, count - half, half));
    TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Add{others, sums}));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView first, ropes.Narrow(0, 0, 1));
  TESSERA_ASSIGN_OR_RETURN(const TensorView sum,
                           first.Reshape({{tokens, 1, latent.rope}}));
  TESSERA_RETURN_IF_ERROR(Rotate(/*inverse=*/true, sum));
  TESSERA_ASSIGN_OR_RETURN(const TensorView packed,
                           HeadsAt(sum, 1, {0, 0, latent.rope}));
  return group_.ops().Run(op::Copy{packed, to});
}

// Values of the heads' own size [tokens, its heads x value], padded with zeros.
absl::StatusOr<ConstTensorView> AttentionCore::Padded(const TokenBatch& batch,
                                                      ConstTensorView values,
                                                      PooledTensor& memory) {
  const int64_t size = options_.value_size(), d = options_.head_size;
  if (size == d) {
    return values.Reshape({{batch.tokens.size(), local_.heads, d}});
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView padded,
                           ReserveHeads(batch, local_.heads, memory));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Fill{0, padded}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                           HeadsAt(values, local_.heads, {0, size, size}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                           HeadsAt(padded, local_.heads, {0, d, size}));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{from, to}));
  return ConstTensorView(padded);
}

absl::StatusOr<ContextAttention::Gradients> AttentionCore::HeadsIn(
    const TokenBatch& batch, const TensorView& qkv) const {
  const int64_t row = qkv.shape()[1], d = options_.head_size;
  const auto part = [&](int64_t of) -> absl::StatusOr<TensorView> {
    const IndexRange columns = partition_.LocalRange(of, group_.rank());
    TESSERA_ASSIGN_OR_RETURN(
        Layout layout,
        Layout::Strided({{batch.sequences, positions_, columns.size() / d, d}},
                        {{positions_ * row, row, d, 1}}));
    return TensorView::Create(
        {qkv.data(), static_cast<size_t>(qkv.size_in_bytes())}, qkv.dtype(),
        std::move(layout), columns.begin, qkv.kind());
  };
  TESSERA_ASSIGN_OR_RETURN(const TensorView query, part(kQuery));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key, part(kKey));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value, part(kValue));
  return ContextAttention::Gradients{query, key, value};
}

absl::Status AttentionCore::RotateIn(bool inverse, const TensorView& qkv) {
  const int64_t d = options_.head_size;
  // Keys follow queries.
  const IndexRange queries = partition_.LocalRange(kQuery, group_.rank());
  const int64_t heads = local_.heads + local_.kv_heads;
  TESSERA_ASSIGN_OR_RETURN(
      Layout layout,
      Layout::Strided({{qkv.shape()[0], heads, d}}, {{qkv.shape()[1], d, 1}}));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView both,
      TensorView::Create({qkv.data(), static_cast<size_t>(qkv.size_in_bytes())},
                         qkv.dtype(), std::move(layout), queries.begin,
                         qkv.kind()));
  return Rotate(inverse, both);
}

absl::Status AttentionCore::CheckHeads(const AttentionActivations& activations,
                                       const char* pass) const {
  return CheckHeld(cuts_heads_in_place() ? activations.qkv : activations.query,
                   pass);
}

absl::Status AttentionCore::SetHeads(const TokenBatch& batch, TensorView qkv,
                                     AttentionActivations& activations) {
  if (options_.is_latent()) return SetLatentHeads(batch, qkv, activations);
  if (cuts_heads_in_place()) return RotateIn(/*inverse=*/false, qkv);
  PooledTensor* const targets[] = {&activations.query, &activations.key,
                                   &activations.value};
  for (const int64_t part : {kQuery, kKey, kValue}) {
    const int64_t heads = part == kQuery ? local_.heads : local_.kv_heads;
    TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                             ReserveHeads(batch, heads, *targets[part]));
    TESSERA_ASSIGN_OR_RETURN(const TensorView from, PartOf(qkv, part));
    if (part != kValue) {
      TESSERA_RETURN_IF_ERROR(SetNormalised(
          batch, from, norms_[static_cast<size_t>(part)],
          part == kQuery ? activations.query_norm : activations.key_norm, to));
    } else {
      TESSERA_ASSIGN_OR_RETURN(const TensorView flat, to.Reshape(from.shape()));
      TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{from, flat}));
    }
    if (part == kValue) continue;
    TESSERA_RETURN_IF_ERROR(Rotate(/*inverse=*/false, to));
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
  std::optional<ConstTensorView> first_keys = activations.first_keys;
  if (!first_keys.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(first_keys, mask_.Of(batch.sequences));
  }
  if (cuts_heads_in_place()) {
    TESSERA_ASSIGN_OR_RETURN(const ContextAttention::Gradients heads,
                             HeadsIn(batch, activations.qkv.view()));
    return ContextAttention::Inputs{heads.query, heads.key, heads.value,
                                    first_keys};
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView query,
                           BySequence(batch, activations.query.view()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView key,
                           BySequence(batch, activations.key.view()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value,
                           BySequence(batch, activations.value.view()));
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
  TESSERA_ASSIGN_OR_RETURN(ContextAttention::Inputs inputs,
                           InputsOf(batch, activations));
  inputs.max_scores = max_scores_;
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
      activations.qkv_gradient.Reserve(options_.dtype,
                                       {{batch.tokens.size(), fused_size()}}));
  if (options_.is_latent()) {
    return SetLatentGradient(batch, gradients, whole, activations.query.pool());
  }
  const TensorView parts[] = {gradients.query, gradients.key, gradients.value};
  for (const int64_t part : {kQuery, kKey, kValue}) {
    if (part != kValue) {
      TESSERA_RETURN_IF_ERROR(Rotate(/*inverse=*/true, parts[part]));
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

absl::Status AttentionCore::BackwardInPlace(const TokenBatch& batch,
                                            ConstTensorView output_gradient,
                                            AttentionActivations& activations) {
  TESSERA_ASSIGN_OR_RETURN(
      const ConstTensorView gradient,
      output_gradient.Reshape(
          {{batch.tokens.size(), local_.heads, options_.head_size}}));
  TESSERA_RETURN_IF_ERROR(SetSinksGradient(gradient, activations));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView whole,
      activations.qkv_gradient.Reserve(options_.dtype,
                                       {{batch.tokens.size(), fused_size()}}));
  TESSERA_ASSIGN_OR_RETURN(const ContextAttention::Gradients heads,
                           HeadsIn(batch, whole));
  TESSERA_RETURN_IF_ERROR(Propagate(batch, gradient, activations, heads));
  activations.qkv.Release();
  activations.log_sum_exp.Release();
  return RotateIn(/*inverse=*/true, whole);
}

absl::Status AttentionCore::Backward(const TokenBatch& batch,
                                     ConstTensorView output_gradient,
                                     AttentionActivations& activations) {
  // Several ranks sum gradients of keys and values in buffers of their own.
  if (cuts_heads_in_place() && attention_ != nullptr &&
      attention_->layout().ranks() == 1) {
    return BackwardInPlace(batch, output_gradient, activations);
  }
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
    PooledTensor memory(pool);
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                             Padded(batch, output_gradient, memory));
    TESSERA_RETURN_IF_ERROR(SetSinksGradient(gradient, activations));
    TESSERA_ASSIGN_OR_RETURN(const TensorView q, BySequence(batch, dq));
    TESSERA_ASSIGN_OR_RETURN(const TensorView k, BySequence(batch, dk));
    TESSERA_ASSIGN_OR_RETURN(const TensorView v, BySequence(batch, dv));
    TESSERA_RETURN_IF_ERROR(Propagate(batch, gradient, activations, {q, k, v}));
  }
  activations.qkv.Release();
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
  return attention_->Backward(inputs, o, lse, gradient, gradients);
}

absl::StatusOr<Attention> Attention::Create(const TensorGroup& group,
                                            const ContextGroup& context,
                                            const AttentionOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(AttentionCore core,
                           AttentionCore::Create(group, context, options));
  const IndexRange heads = core.partition().RangeOf(0, group.rank());
  const int64_t d = options.head_size, value = options.value_size();
  TESSERA_ASSIGN_OR_RETURN(
      auto output,
      RowParallelLinear::Create(
          group, {.in = options.heads * value,
                  .out = options.width,
                  .columns = {heads.begin / d * value, heads.end / d * value},
                  .bias = options.output_bias,
                  .dtype = options.dtype,
                  .fp8 = options.fp8,
                  .lora = options.lora}));
  Attention attention(group, options, std::move(core), std::move(output));
  TESSERA_RETURN_IF_ERROR(attention.CreateProjection());
  return attention;
}

absl::Status Attention::CreateProjection() {
  if (options_.is_latent()) {
    TESSERA_ASSIGN_OR_RETURN(
        auto latent,
        LatentProjection::Create(group_, {.width = options_.width,
                                          .heads = options_.heads,
                                          .latent = options_.latent,
                                          .dtype = options_.dtype,
                                          .fp8 = options_.fp8,
                                          .lora = options_.lora}));
    latent_.emplace(std::move(latent));
    return absl::OkStatus();
  }
  const FusedPartition& partition = core_.partition();
  TESSERA_ASSIGN_OR_RETURN(auto qkv, ColumnParallelLinear::Create(
                                         group_, {.in = options_.width,
                                                  .out = partition.size(),
                                                  .bias = options_.qkv_bias,
                                                  .dtype = options_.dtype,
                                                  .fp8 = options_.fp8,
                                                  .parts = partition.parts(),
                                                  .lora = options_.lora}));
  qkv_.emplace(std::move(qkv));
  return absl::OkStatus();
}

void Attention::AppendParameters(std::string_view prefix,
                                 std::vector<Parameter*>& parameters) {
  if (qkv_) qkv_->AppendParameters(ParameterName(prefix, "qkv"), parameters);
  if (latent_) latent_->AppendParameters(prefix, parameters);
  output_.AppendParameters(ParameterName(prefix, "output"), parameters);
  if (Parameter* const sinks = core_.sinks()) {
    sinks->Rename(ParameterName(prefix, "sinks"));
    parameters.push_back(sinks);
  }
  if (latent_) latent_->AppendNorms(prefix, parameters);
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
  TESSERA_RETURN_IF_ERROR(qkv_ ? qkv_->CheckValues() : latent_->CheckValues());
  return output_.CheckValues();
}

absl::Status Attention::CheckGradients() {
  for (RmsNorm& norm : core_.norms()) {
    TESSERA_RETURN_IF_ERROR(norm.weight().CheckGradient());
  }
  if (Parameter* const sinks = core_.sinks()) {
    TESSERA_RETURN_IF_ERROR(sinks->CheckGradient());
  }
  TESSERA_RETURN_IF_ERROR(qkv_ ? qkv_->CheckGradients()
                               : latent_->CheckGradients());
  return output_.CheckGradients();
}

// The core's output, shaped as the input of the output projection; without the
// padding of values, in `memory`.
absl::StatusOr<ConstTensorView> Attention::OutputOf(
    const AttentionActivations& activations, PooledTensor& memory) const {
  const ConstTensorView output = activations.output.view();
  const int64_t tokens = output.shape()[0], heads = output.shape()[1],
                d = output.shape()[2], value = options_.value_size();
  if (value == d) return output.Reshape({{tokens, output_.local_in()}});
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView packed,
      memory.Reserve(options_.dtype, {{tokens, output_.local_in()}}));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView from,
                           HeadsAt(output, heads, {0, d, value}));
  TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                           HeadsAt(packed, heads, {0, value, value}));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{from, to}));
  return ConstTensorView(packed);
}

absl::Status Attention::Forward(const TokenBatch& batch, ConstTensorView x,
                                TensorView y,
                                AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  PooledTensor memory(activations.query.pool());
  PooledTensor& projected =
      core_.cuts_heads_in_place() ? activations.qkv : memory;
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView qkv,
      projected.Reserve(options_.dtype,
                        {{batch.tokens.size(),
                          qkv_ ? qkv_->local_out() : latent_->local_out()}}));
  TESSERA_RETURN_IF_ERROR(
      qkv_ ? qkv_->Forward(batch.tokens, x, qkv)
           : latent_->Forward(batch.tokens, x, qkv, activations.latent));
  TESSERA_RETURN_IF_ERROR(core_.SetHeads(batch, qkv, activations));
  memory.Release();
  TESSERA_RETURN_IF_ERROR(core_.Attend(batch, activations));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output,
                           OutputOf(activations, memory));
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
  TESSERA_RETURN_IF_ERROR(core_.CheckHeads(activations, "BackwardInput"));
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
  const TensorView qkv = activations.qkv_gradient.view();
  return qkv_ ? qkv_->BackwardInput(batch.tokens, qkv, x_gradient)
              : latent_->BackwardInput(batch.tokens, qkv, x_gradient,
                                       activations.latent);
}

absl::Status Attention::BackwardWeight(const TokenBatch& batch,
                                       ConstTensorView y_gradient,
                                       ConstTensorView x,
                                       AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(
      CheckHeld(activations.qkv_gradient, "BackwardWeight"));
  PooledTensor memory(activations.query.pool());
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output,
                           OutputOf(activations, memory));
  TESSERA_RETURN_IF_ERROR(
      output_.BackwardWeight(batch.tokens, y_gradient, output));
  memory.Release();
  activations.output.Release();
  TESSERA_RETURN_IF_ERROR(core_.BackwardWeight(activations));
  const TensorView qkv = activations.qkv_gradient.view();
  TESSERA_RETURN_IF_ERROR(
      qkv_ ? qkv_->BackwardWeight(batch.tokens, qkv, x)
           : latent_->BackwardWeight(batch.tokens, qkv, x, activations.latent));
  activations.Clear();
  return absl::OkStatus();
}

absl::Status Attention::Backward(const TokenBatch& batch,
                                 ConstTensorView y_gradient, ConstTensorView x,
                                 TensorView x_gradient,
                                 AttentionActivations& activations) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(core_.CheckHeads(activations, "Backward"));
  TESSERA_RETURN_IF_ERROR(AttendAgain(batch, activations));
  PooledTensor memory(activations.query.pool());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView output_gradient,
      memory.Reserve(options_.dtype,
                     {{batch.tokens.size(), output_.local_in()}}));
  PooledTensor packed(activations.query.pool());
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView output,
                           OutputOf(activations, packed));
  TESSERA_RETURN_IF_ERROR(
      output_.Backward(batch.tokens, y_gradient, output, output_gradient));
  packed.Release();
  TESSERA_RETURN_IF_ERROR(core_.Backward(batch, output_gradient, activations));
  memory.Release();
  activations.output.Release();
  TESSERA_RETURN_IF_ERROR(core_.BackwardWeight(activations));
  const TensorView qkv = activations.qkv_gradient.view();
  if (qkv_) {
    TESSERA_RETURN_IF_ERROR(qkv_->Backward(batch.tokens, qkv, x, x_gradient));
  } else {
    TESSERA_RETURN_IF_ERROR(latent_->BackwardInput(
        batch.tokens, qkv, x_gradient, activations.latent));
    TESSERA_RETURN_IF_ERROR(
        latent_->BackwardWeight(batch.tokens, qkv, x, activations.latent));
  }
  activations.Clear();
  return absl::OkStatus();
}

absl::Status Attention::FinishGradients() {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(qkv_ ? qkv_->FinishGradients()
                               : latent_->FinishGradients());
  TESSERA_RETURN_IF_ERROR(output_.FinishGradients());
  return core_.FinishGradients();
}

}  // namespace tessera::tensor_parallel
