#include "tensor_parallel/context/ulysses_attention.h"

#include <limits>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "tensor_parallel/layers/linear_weights.h"

namespace tessera::tensor_parallel {
namespace {

std::vector<ConstTensorView> ToConst(const std::vector<TensorView>& views) {
  return {views.begin(), views.end()};
}

}  // namespace

absl::StatusOr<UlyssesAttention> UlyssesAttention::Create(
    const TensorGroup& group, const SequenceLayout& layout,
    const ContextAttentionOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const ContextAttentionOptions checked,
                           OperandShapes::CheckOptions(group, layout, options));
  TESSERA_ASSIGN_OR_RETURN(
      const HeadPartition heads,
      HeadPartition::Create(options.heads, options.kv_heads, group.size()));
  return UlyssesAttention(group, layout, checked, heads);
}

UlyssesAttention::UlyssesAttention(const TensorGroup& group,
                                   const SequenceLayout& layout,
                                   const ContextAttentionOptions& options,
                                   const HeadPartition& heads)
    : group_(group),
      layout_(layout),
      options_(options),
      heads_(heads),
      runs_(heads.RunsOf(group.rank())),
      positions_(static_cast<size_t>(layout.length())),
      exchange_(group, layout, heads) {
  std::iota(positions_.begin(), positions_.end(), 0);
}

DType UlyssesAttention::statistics() const {
  return GradientDType(options_.dtype);
}

OperandShapes UlyssesAttention::Shapes() const {
  return OperandShapes(group_.rank(), layout_.SizeOf(group_.rank()), options_);
}

// Working memory by head: with the elements of a head, or a number for each.
absl::StatusOr<UlyssesAttention::ByHead> UlyssesAttention::Get(
    ByHeadMemory& memory, HeadKind kind, DType dtype, bool has_elements) {
  while (memory.size() < runs_.size()) memory.emplace_back(group_.memory());
  ByHead views;
  for (size_t run = 0; run < runs_.size(); ++run) {
    const IndexRange heads =
        kind == HeadKind::kQuery ? runs_[run].heads : runs_[run].kv_heads;
    std::vector<int64_t> shape = {layout_.length(), heads.size()};
    if (has_elements) shape.push_back(options_.head_size);
    TESSERA_ASSIGN_OR_RETURN(const TensorView view,
                             memory[run].Get(dtype, shape));
    views.push_back(view);
  }
  return views;
}

absl::StatusOr<UlyssesAttention::Gathered> UlyssesAttention::GetInputs() {
  TESSERA_ASSIGN_OR_RETURN(ByHead query,
                           Get(query_, HeadKind::kQuery, options_.dtype));
  TESSERA_ASSIGN_OR_RETURN(ByHead key,
                           Get(key_, HeadKind::kKeyValue, options_.dtype));
  TESSERA_ASSIGN_OR_RETURN(ByHead value,
                           Get(value_, HeadKind::kKeyValue, options_.dtype));
  return Gathered{std::move(query), std::move(key), std::move(value)};
}

AttentionBlock UlyssesAttention::BlockOf(const Gathered& gathered,
                                         size_t run) const {
  return {.query = gathered.query[run],
          .key = gathered.key[run],
          .value = gathered.value[run],
          .query_positions = positions_,
          .key_positions = positions_,
          .causal = options_.causal,
          .scale = *options_.scale};
}

absl::Status UlyssesAttention::Attend(const Gathered& gathered,
                                      const ByHead& output,
                                      const ByHead& log_sum_exp) {
  Ops& ops = group_.ops();
  for (size_t run = 0; run < runs_.size(); ++run) {
    TESSERA_RETURN_IF_ERROR(ops.Fill(0, output[run]));
    TESSERA_RETURN_IF_ERROR(
        ops.Fill(-std::numeric_limits<double>::infinity(), log_sum_exp[run]));
    TESSERA_RETURN_IF_ERROR(
        ops.Attend(BlockOf(gathered, run), {output[run], log_sum_exp[run]}));
  }
  return absl::OkStatus();
}

// In the type of the inputs; the same memory where that is this type.
absl::StatusOr<UlyssesAttention::ByHead> UlyssesAttention::Narrowed(
    const ByHead& wide, ByHeadMemory& memory, HeadKind kind) {
  if (statistics() == options_.dtype) return wide;
  TESSERA_ASSIGN_OR_RETURN(ByHead narrow, Get(memory, kind, options_.dtype));
  for (size_t run = 0; run < runs_.size(); ++run) {
    TESSERA_RETURN_IF_ERROR(group_.ops().Cast(wide[run], narrow[run]));
  }
  return narrow;
}

absl::Status UlyssesAttention::Forward(const Inputs& inputs, TensorView output,
                                       TensorView log_sum_exp) {
  TESSERA_RETURN_IF_ERROR(Shapes().CheckForward(inputs, output, log_sum_exp));
  TESSERA_ASSIGN_OR_RETURN(const Gathered gathered, GetInputs());
  TESSERA_RETURN_IF_ERROR(exchange_.ToHeads(
      {{{HeadKind::kQuery, inputs.query, gathered.query},
        {HeadKind::kKeyValue, inputs.key, gathered.key},
        {HeadKind::kKeyValue, inputs.value, gathered.value}}}));
  TESSERA_ASSIGN_OR_RETURN(const ByHead wide,
                           Get(output_, HeadKind::kQuery, statistics()));
  TESSERA_ASSIGN_OR_RETURN(
      const ByHead statistic,
      Get(log_sum_exp_, HeadKind::kQuery, statistics(), false));
  TESSERA_RETURN_IF_ERROR(Attend(gathered, wide, statistic));
  TESSERA_ASSIGN_OR_RETURN(const ByHead narrow,
                           Narrowed(wide, narrow_output_, HeadKind::kQuery));
  return exchange_.ToPositions(
      {{{HeadKind::kQuery, ToConst(narrow), output},
        {HeadKind::kQuery, ToConst(statistic), log_sum_exp}}});
}

// Of this rank's positions, where the output is; only it need travel.
absl::StatusOr<TensorView> UlyssesAttention::DeltaOf(
    ConstTensorView output, ConstTensorView output_gradient) {
  const std::vector<int64_t> shape(output.shape().begin(),
                                   output.shape().end());
  if (statistics() != options_.dtype) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView wide,
                             wide_output_.Get(statistics(), shape));
    TESSERA_RETURN_IF_ERROR(group_.ops().Cast(output, wide));
    output = wide;
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView delta,
      local_delta_.Get(statistics(), std::span(shape).first(2)));
  TESSERA_RETURN_IF_ERROR(group_.ops().RowDots(output, output_gradient, delta));
  return delta;
}

// Where the sums of a gradient come to be.
absl::StatusOr<TensorView> UlyssesAttention::SumOf(ReusableTensor& memory,
                                                   TensorView gradient) {
  if (!heads_.shares_kv_heads() || statistics() == options_.dtype) {
    return gradient;
  }
  return memory.Get(statistics(),
                    {gradient.shape().begin(), gradient.shape().end()});
}

absl::Status UlyssesAttention::ReturnGradients(const Gathered& wide,
                                               const Gradients& gradients) {
  // Where ranks share kv heads, what is rounded is the sum, once.
  const bool shares = heads_.shares_kv_heads();
  Gathered narrow = wide;
  TESSERA_ASSIGN_OR_RETURN(
      narrow.query, Narrowed(wide.query, narrow_query_, HeadKind::kQuery));
  if (!shares) {
    TESSERA_ASSIGN_OR_RETURN(
        narrow.key, Narrowed(wide.key, narrow_key_, HeadKind::kKeyValue));
    TESSERA_ASSIGN_OR_RETURN(
        narrow.value, Narrowed(wide.value, narrow_value_, HeadKind::kKeyValue));
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorView key,
                           SumOf(key_sum_, gradients.key));
  TESSERA_ASSIGN_OR_RETURN(const TensorView value,
                           SumOf(value_sum_, gradients.value));
  TESSERA_RETURN_IF_ERROR(exchange_.ToPositions(
      {{{HeadKind::kQuery, ToConst(narrow.query), gradients.query},
        {HeadKind::kKeyValue, ToConst(narrow.key), key, shares},
        {HeadKind::kKeyValue, ToConst(narrow.value), value, shares}}}));
  if (key.dtype() == options_.dtype) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(group_.ops().Cast(key, gradients.key));
  return group_.ops().Cast(value, gradients.value);
}

absl::Status UlyssesAttention::Backward(const Inputs& inputs,
                                        ConstTensorView output,
                                        ConstTensorView log_sum_exp,
                                        ConstTensorView output_gradient,
                                        const Gradients& gradients) {
  TESSERA_RETURN_IF_ERROR(Shapes().CheckBackward(inputs, output, log_sum_exp,
                                                 output_gradient, gradients));
  TESSERA_ASSIGN_OR_RETURN(const TensorView local_delta,
                           DeltaOf(output, output_gradient));
  TESSERA_ASSIGN_OR_RETURN(const Gathered gathered, GetInputs());
  TESSERA_ASSIGN_OR_RETURN(
      const ByHead gradient,
      Get(output_gradient_, HeadKind::kQuery, options_.dtype));
  TESSERA_ASSIGN_OR_RETURN(
      const ByHead statistic,
      Get(log_sum_exp_, HeadKind::kQuery, statistics(), false));
  TESSERA_ASSIGN_OR_RETURN(const ByHead delta,
                           Get(delta_, HeadKind::kQuery, statistics(), false));
  TESSERA_RETURN_IF_ERROR(
      exchange_.ToHeads({{{HeadKind::kQuery, inputs.query, gathered.query},
                          {HeadKind::kKeyValue, inputs.key, gathered.key},
                          {HeadKind::kKeyValue, inputs.value, gathered.value},
                          {HeadKind::kQuery, output_gradient, gradient},
                          {HeadKind::kQuery, log_sum_exp, statistic},
                          {HeadKind::kQuery, local_delta, delta}}}));
  Gathered wide;
  TESSERA_ASSIGN_OR_RETURN(
      wide.query, Get(query_gradient_, HeadKind::kQuery, statistics()));
  TESSERA_ASSIGN_OR_RETURN(
      wide.key, Get(key_gradient_, HeadKind::kKeyValue, statistics()));
  TESSERA_ASSIGN_OR_RETURN(
      wide.value, Get(value_gradient_, HeadKind::kKeyValue, statistics()));
  Ops& ops = group_.ops();
  for (size_t run = 0; run < runs_.size(); ++run) {
    for (const ByHead* of : {&wide.query, &wide.key, &wide.value}) {
      TESSERA_RETURN_IF_ERROR(ops.Fill(0, (*of)[run]));
    }
    TESSERA_RETURN_IF_ERROR(
        ops.AttendGradient(BlockOf(gathered, run),
                           {gradient[run], statistic[run], delta[run],
                            wide.query[run], wide.key[run], wide.value[run]}));
  }
  return ReturnGradients(wide, gradients);
}

}  // namespace tessera::tensor_parallel
