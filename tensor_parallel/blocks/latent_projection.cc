#include "tensor_parallel/blocks/latent_projection.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

namespace {

// The parts of y.
constexpr int kQueryPart = 0;
constexpr int kKvPart = 1;
constexpr int kRopePart = 2;

absl::Status CheckOptions(const LatentProjection::Options& options) {
  const LatentOptions& latent = options.latent;
  if (options.width >= 0 && options.heads >= 1 && latent.query_rank >= 0 &&
      latent.kv_rank >= 1 && latent.nope >= 0 && latent.rope >= 2 &&
      latent.rope % 2 == 0 && latent.value >= 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a latent projection of width ", options.width, ", ", options.heads,
      " heads, latent vectors of ", latent.query_rank, " and ", latent.kv_rank,
      ", and heads of ", latent.nope, " + ", latent.rope, " and ", latent.value,
      " elements; sizes should be positive, those of the queries' latent "
      "vector and of the first part 0 or more, and the second part even"));
}

absl::StatusOr<ColumnParallelLinear> MakeUp(
    const TensorGroup& group, const LatentProjection::Options& options,
    int64_t in, int64_t head_size) {
  const FusedPart part = HeadsPart(options.heads, head_size);
  return ColumnParallelLinear::Create(group, {.in = in,
                                              .out = part.size,
                                              .dtype = options.dtype,
                                              .fp8 = options.fp8,
                                              .parts = {part},
                                              .lora = options.lora});
}

absl::StatusOr<RmsNorm> MakeNorm(const TensorGroup& group,
                                 const LatentProjection::Options& options,
                                 int64_t width) {
  return RmsNorm::Create(group, {.width = width,
                                 .epsilon = options.latent.norm_epsilon,
                                 .dtype = options.dtype});
}

template <typename View>
absl::StatusOr<View> Columns(const View& x, IndexRange range) {
  return x.Narrow(1, range.begin, range.size());
}

}  // namespace

absl::StatusOr<LatentProjection> LatentProjection::Create(
    const TensorGroup& group, const Options& options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(options));
  const LatentOptions& latent = options.latent;
  std::vector<int64_t> outs = {latent.kv_rank + latent.rope};
  std::optional<RmsNorm> query_norm;
  if (latent.query_rank > 0) {
    outs.insert(outs.begin(), latent.query_rank);
    TESSERA_ASSIGN_OR_RETURN(RmsNorm norm,
                             MakeNorm(group, options, latent.query_rank));
    query_norm.emplace(std::move(norm));
  }
  TESSERA_ASSIGN_OR_RETURN(
      ReplicatedLinear down,
      ReplicatedLinear::Create(group, {.in = options.width,
                                       .outs = std::move(outs),
                                       .dtype = options.dtype,
                                       .fp8 = options.fp8,
                                       .lora = options.lora}));
  TESSERA_ASSIGN_OR_RETURN(
      ColumnParallelLinear query_up,
      MakeUp(group, options,
             latent.query_rank > 0 ? latent.query_rank : options.width,
             latent.head_size()));
  TESSERA_ASSIGN_OR_RETURN(RmsNorm kv_norm,
                           MakeNorm(group, options, latent.kv_rank));
  TESSERA_ASSIGN_OR_RETURN(
      ColumnParallelLinear kv_up,
      MakeUp(group, options, latent.kv_rank, latent.nope + latent.value));
  return LatentProjection(group, options, std::move(down),
                          std::move(query_norm), std::move(query_up),
                          std::move(kv_norm), std::move(kv_up));
}

void LatentProjection::AppendParameters(std::string_view prefix,
                                        std::vector<Parameter*>& parameters) {
  down_.AppendParameters(ParameterName(prefix, "latent_down"), parameters);
  query_up_.AppendParameters(ParameterName(prefix, "query_up"), parameters);
  kv_up_.AppendParameters(ParameterName(prefix, "kv_up"), parameters);
}

void LatentProjection::AppendNorms(std::string_view prefix,
                                   std::vector<Parameter*>& parameters) {
  if (query_norm_) {
    query_norm_->AppendParameters(ParameterName(prefix, "query_norm"),
                                  parameters);
  }
  kv_norm_.AppendParameters(ParameterName(prefix, "key_norm"), parameters);
}

absl::Status LatentProjection::CheckValues() const {
  TESSERA_RETURN_IF_ERROR(down_.CheckValues());
  TESSERA_RETURN_IF_ERROR(query_up_.CheckValues());
  return kv_up_.CheckValues();
}

absl::Status LatentProjection::CheckGradients() const {
  TESSERA_RETURN_IF_ERROR(down_.CheckGradients());
  TESSERA_RETURN_IF_ERROR(query_up_.CheckGradients());
  return kv_up_.CheckGradients();
}

IndexRange LatentProjection::PartColumns(int part) const {
  const int64_t ends[] = {0, query_up_.local_out(),
                          query_up_.local_out() + kv_up_.local_out(),
                          local_out()};
  return {ends[part], ends[part + 1]};
}

// y = up norm(latent), for a latent vector in these columns of `down`.
absl::Status LatentProjection::RaiseLatent(const Partition& tokens,
                                           IndexRange columns, RmsNorm& norm,
                                           ColumnParallelLinear& up,
                                           TensorView y,
                                           const LatentActivations& a,
                                           LatentVector& latent) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView from,
                           Columns(a.down.view(), columns));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView value,
      latent.value.Reserve(options_.dtype,
                           {{from.shape()[0], columns.size()}}));
  TESSERA_RETURN_IF_ERROR(norm.Forward(from, value, latent.state));
  return up.Forward(tokens, value, y);
}

// Sets these columns of the gradient of `down`, and latent.gradient.
absl::Status LatentProjection::LowerGradient(const Partition& tokens,
                                             IndexRange columns, RmsNorm& norm,
                                             ColumnParallelLinear& up,
                                             ConstTensorView y_gradient,
                                             const LatentActivations& a,
                                             LatentVector& latent) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView from,
                           Columns(a.down.view(), columns));
  TESSERA_ASSIGN_OR_RETURN(const TensorView to,
                           Columns(a.down_gradient.view(), columns));
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView gradient,
      latent.gradient.Reserve(options_.dtype,
                              {{from.shape()[0], columns.size()}}));
  TESSERA_RETURN_IF_ERROR(up.BackwardInput(tokens, y_gradient, gradient));
  return norm.BackwardInput(gradient, from, latent.state, to);
}

// all = the rotated elements of the keys of all ranks' tokens.
absl::Status LatentProjection::ShareRope(const Partition& tokens,
                                         ConstTensorView mine, TensorView all,
                                         TensorPool& pool) const {
  if (!group_.sequence_parallel()) {
    return group_.ops().Run(op::Copy{mine, all});
  }
  PooledTensor mine_memory(pool), all_memory(pool);
  TESSERA_ASSIGN_OR_RETURN(const TensorView packed,
                           mine_memory.Reserve(options_.dtype, mine.shape()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView gathered,
                           all_memory.Reserve(options_.dtype, all.shape()));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{mine, packed}));
  TESSERA_RETURN_IF_ERROR(group_.GatherTokens(tokens, packed, gathered));
  return group_.ops().Run(op::Copy{gathered, all});
}

// mine = the sums over the ranks' heads of the gradient of these elements.
absl::Status LatentProjection::SumRope(const Partition& tokens,
                                       ConstTensorView all, TensorView mine,
                                       TensorPool& pool) const {
  PooledTensor all_memory(pool), mine_memory(pool);
  TESSERA_ASSIGN_OR_RETURN(const TensorView packed,
                           all_memory.Reserve(options_.dtype, all.shape()));
  TESSERA_RETURN_IF_ERROR(group_.ops().Run(op::Copy{all, packed}));
  if (!group_.sequence_parallel()) {
    TESSERA_RETURN_IF_ERROR(group_.SumOver(packed));
    return group_.ops().Run(op::Copy{packed, mine});
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView sums,
                           mine_memory.Reserve(options_.dtype, mine.shape()));
  TESSERA_RETURN_IF_ERROR(group_.ScatterSums(tokens, packed, sums));
  return group_.ops().Run(op::Copy{sums, mine});
}

absl::Status LatentProjection::Forward(const Partition& tokens,
                                       ConstTensorView x, TensorView y,
                                       LatentActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView down,
      a.down.Reserve(
          options_.dtype,
          {{group_.TokensBetweenLayers(tokens).size(), down_.out()}}));
  TESSERA_RETURN_IF_ERROR(down_.Forward(x, down));
  TESSERA_ASSIGN_OR_RETURN(const TensorView query,
                           Columns(y, PartColumns(kQueryPart)));
  TESSERA_ASSIGN_OR_RETURN(const TensorView kv,
                           Columns(y, PartColumns(kKvPart)));
  TESSERA_ASSIGN_OR_RETURN(const TensorView rope,
                           Columns(y, PartColumns(kRopePart)));
  TESSERA_RETURN_IF_ERROR(query_norm_ ? RaiseLatent(tokens, query_columns(),
                                                    *query_norm_, query_up_,
                                                    query, a, a.query)
                                      : query_up_.Forward(tokens, x, query));
  TESSERA_RETURN_IF_ERROR(
      RaiseLatent(tokens, kv_columns(), kv_norm_, kv_up_, kv, a, a.kv));
  TESSERA_ASSIGN_OR_RETURN(const TensorView mine,
                           Columns(down, rope_columns()));
  return ShareRope(tokens, mine, rope, a.down.pool());
}

absl::Status LatentProjection::BackwardInput(const Partition& tokens,
                                             ConstTensorView y_gradient,
                                             TensorView x_gradient,
                                             LatentActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckValues());
  if (!a.down.held()) {
    return absl::FailedPreconditionError(
        "LatentProjection::BackwardInput of activations that no forward has "
        "filled");
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView down,
      a.down_gradient.Reserve(options_.dtype, a.down.view().shape()));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView query,
                           Columns(y_gradient, PartColumns(kQueryPart)));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView kv,
                           Columns(y_gradient, PartColumns(kKvPart)));
  TESSERA_ASSIGN_OR_RETURN(const ConstTensorView rope,
                           Columns(y_gradient, PartColumns(kRopePart)));
  TESSERA_RETURN_IF_ERROR(
      query_norm_ ? LowerGradient(tokens, query_columns(), *query_norm_,
                                  query_up_, query, a, a.query)
                  : query_up_.BackwardInput(tokens, query, x_gradient));
  TESSERA_RETURN_IF_ERROR(
      LowerGradient(tokens, kv_columns(), kv_norm_, kv_up_, kv, a, a.kv));
  TESSERA_ASSIGN_OR_RETURN(const TensorView mine,
                           Columns(down, rope_columns()));
  TESSERA_RETURN_IF_ERROR(SumRope(tokens, rope, mine, a.down.pool()));
  return down_.BackwardInput(down, x_gradient,
                             /*accumulate=*/!query_norm_.has_value());
}

absl::Status LatentProjection::BackwardWeight(const Partition& tokens,
                                              ConstTensorView y_gradient,
                                              ConstTensorView x,
                                              LatentActivations& a) {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  if (!a.down_gradient.held()) {
    return absl::FailedPreconditionError(
        "LatentProjection::BackwardWeight before BackwardInput");
  }
  const auto add = [&](RmsNorm& norm, ColumnParallelLinear& up,
                       IndexRange columns, int part,
                       LatentVector& latent) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                             Columns(y_gradient, PartColumns(part)));
    TESSERA_ASSIGN_OR_RETURN(const TensorView from,
                             Columns(a.down.view(), columns));
    TESSERA_RETURN_IF_ERROR(
        up.BackwardWeight(tokens, gradient, latent.value.view()));
    return norm.BackwardWeight(latent.gradient.view(), from, latent.state);
  };
  if (query_norm_) {
    TESSERA_RETURN_IF_ERROR(
        add(*query_norm_, query_up_, query_columns(), kQueryPart, a.query));
  } else {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView gradient,
                             Columns(y_gradient, PartColumns(kQueryPart)));
    TESSERA_RETURN_IF_ERROR(query_up_.BackwardWeight(tokens, gradient, x));
  }
  TESSERA_RETURN_IF_ERROR(add(kv_norm_, kv_up_, kv_columns(), kKvPart, a.kv));
  return down_.BackwardWeight(a.down_gradient.view(), x);
}

absl::Status LatentProjection::FinishGradients() {
  TESSERA_RETURN_IF_ERROR(CheckGradients());
  TESSERA_RETURN_IF_ERROR(query_up_.FinishGradients());
  TESSERA_RETURN_IF_ERROR(kv_up_.FinishGradients());
  if (query_norm_) TESSERA_RETURN_IF_ERROR(query_norm_->FinishGradients());
  TESSERA_RETURN_IF_ERROR(kv_norm_.FinishGradients());
  return down_.FinishGradients();
}

}  // namespace tessera::tensor_parallel
