#include "tensor_parallel/context/context_attention.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/parameter.h"

namespace tessera::tensor_parallel {

std::vector<int64_t> ContextAttention::FirstKeys(
    std::span<const int64_t> first_positions) const {
  const auto length = static_cast<size_t>(layout().length());
  const size_t sequences = length == 0 ? 0 : first_positions.size() / length;
  std::vector<int64_t> numbers;
  for (const FirstKeysTable& table : FirstKeysTables()) {
    for (size_t s = 0; s < sequences; ++s) {
      for (const int64_t query : table.queries) {
        const int64_t first =
            first_positions[s * length + static_cast<size_t>(query)];
        numbers.push_back(
            std::lower_bound(table.keys.begin(), table.keys.end(), first) -
            table.keys.begin());
      }
    }
  }
  return numbers;
}

absl::StatusOr<ContextAttentionOptions> OperandShapes::CheckOptions(
    const TensorGroup& group, const SequenceLayout& layout,
    const ContextAttentionOptions& options) {
  if (layout.ranks() != group.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sequence is laid out for ", layout.ranks(),
                     " ranks; the group has ", group.size()));
  }
  if (options.heads < 1 || options.kv_heads < 1 || options.head_size < 1 ||
      options.heads % options.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention of ", options.heads, " heads of ",
                     options.head_size, " elements, ", options.kv_heads,
                     " of keys and values; give 1 or more "
                     "of each, and a number of these that divides the heads"));
  }
  if (options.dtype != DType::kF64 && options.dtype != DType::kF32 &&
      options.dtype != DType::kBF16 && options.dtype != DType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention of ", DTypeName(options.dtype),
                     "; f64, f32, bf16 and f16 are allowed"));
  }
  ContextAttentionOptions checked = options;
  if (!checked.scale) {
    checked.scale = 1 / std::sqrt(static_cast<double>(options.head_size));
  }
  return checked;
}

absl::Status OperandShapes::Check(std::string_view name,
                                  const ConstTensorView& x, DType dtype,
                                  std::span<const int64_t> shape,
                                  bool contiguous) const {
  const bool fits = std::equal(shape.begin(), shape.end(), x.shape().begin(),
                               x.shape().end()) &&
                    x.dtype() == dtype;
  if (fits && (contiguous ? x.IsContiguous() : x.strides().back() == 1)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", rank_, ": ", name, " is ", DTypeName(x.dtype()), " of ",
      absl::StrJoin(x.shape(), " x "), x.IsContiguous() ? "" : " with gaps",
      "; it should be ", DTypeName(dtype), " of ", absl::StrJoin(shape, " x "),
      shape.size() == 1   ? " (heads)"
      : shape.size() == 3 ? " (sequences, positions, heads)"
                          : " (sequences, positions, heads, head size)"));
}

absl::Status OperandShapes::CheckHeads(std::string_view name,
                                       const ConstTensorView& x, int64_t heads,
                                       bool contiguous) const {
  return Check(name, x, options_.dtype,
               {{sequences_, positions_, heads, options_.head_size}},
               contiguous);
}

absl::Status OperandShapes::CheckForward(
    const ContextAttention::Inputs& inputs, const ConstTensorView& output,
    const ConstTensorView& log_sum_exp) const {
  TESSERA_RETURN_IF_ERROR(
      CheckHeads("query", inputs.query, options_.heads, false));
  TESSERA_RETURN_IF_ERROR(
      CheckHeads("key", inputs.key, options_.kv_heads, false));
  TESSERA_RETURN_IF_ERROR(
      CheckHeads("value", inputs.value, options_.kv_heads, false));
  TESSERA_RETURN_IF_ERROR(CheckHeads("output", output, options_.heads, true));
  if (inputs.max_scores.has_value()) {
    TESSERA_RETURN_IF_ERROR(Check("max scores", *inputs.max_scores,
                                  GradientDType(options_.dtype),
                                  {{options_.heads}}));
  }
  return Check("log-sum-exp", log_sum_exp, GradientDType(options_.dtype),
               {{sequences_, positions_, options_.heads}});
}

absl::Status OperandShapes::CheckBackward(
    const ContextAttention::Inputs& inputs, const ConstTensorView& output,
    const ConstTensorView& log_sum_exp, const ConstTensorView& output_gradient,
    const ContextAttention::Gradients& gradients) const {
  TESSERA_RETURN_IF_ERROR(CheckForward(inputs, output, log_sum_exp));
  TESSERA_RETURN_IF_ERROR(
      CheckHeads("output gradient", output_gradient, options_.heads, true));
  TESSERA_RETURN_IF_ERROR(
      CheckHeads("query gradient", gradients.query, options_.heads, false));
  TESSERA_RETURN_IF_ERROR(
      CheckHeads("key gradient", gradients.key, options_.kv_heads, false));
  return CheckHeads("value gradient", gradients.value, options_.kv_heads,
                    false);
}

absl::Status OperandShapes::CheckFirstKeys(
    const ContextAttention::Inputs& inputs,
    std::span<const int64_t> shape) const {
  const ConstTensorView& x = *inputs.first_keys;
  if (std::equal(shape.begin(), shape.end(), x.shape().begin(),
                 x.shape().end()) &&
      x.dtype() == DType::kI64) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", rank_, ": first keys are ", DTypeName(x.dtype()), " of ",
      absl::StrJoin(x.shape(), " x "), "; they should be i64 of ",
      absl::StrJoin(shape, " x "), " (tables, sequences, queries)"));
}

}  // namespace tessera::tensor_parallel
