#include "tensor_parallel/ops/attention.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"

namespace tessera::tensor_parallel {

namespace {

absl::Status CheckBlock(OperandChecker& check, const AttentionBlock& block) {
  TESSERA_RETURN_IF_ERROR(check.Leads("query", block.query, 4));
  TESSERA_RETURN_IF_ERROR(
      check
          .Requires(block.key.rank() == 4,
                    absl::StrCat("\"key\" has ", block.key.rank(),
                                 " dimensions; it should have 4."))
          .status());
  const int64_t sequences = block.query.shape()[0];
  const int64_t heads = block.query.shape()[2], d = block.query.shape()[3];
  const int64_t keys = block.key.shape()[1], kv_heads = block.key.shape()[2];
  const bool divides = kv_heads == 0 ? heads == 0 : heads % kv_heads == 0;
  check.Reads("key", block.key, {{sequences, keys, kv_heads, d}})
      .Reads("value", block.value, {{sequences, keys, kv_heads, d}})
      .Requires(divides,
                absl::StrCat("\"query\" has ", heads, " heads, \"key\" ",
                             kv_heads, "; the second should divide the first."))
      .Requires(block.cap >= 0 && std::isfinite(block.cap),
                absl::StrCat("cap is ", block.cap,
                             "; it should be positive, or 0 for none."));
  check.Requires(!block.is_whole || block.kind != BlockKind::kNone,
                 "a block whose queries see no key is whole; it should be of "
                 "another kind.");
  if (block.first_keys.has_value()) {
    check
        .ReadsRows("first_keys", *block.first_keys, DType::kI64,
                   {{sequences, block.query.shape()[1]}})
        .Requires(block.scale > 0,
                  absl::StrCat("scale is ", block.scale,
                               "; with \"first_keys\" it should be positive."));
  }
  return check.status();
}

std::array<int64_t, 3> WithoutLast(const Dims& shape) {
  return {shape[0], shape[1], shape[2]};
}

// A result of a block, of the query's type or of its statistics.
void Writes(OperandChecker& check, const AttentionBlock& block,
            std::string_view name, const TensorView& result,
            std::span<const int64_t> shape) {
  if (block.is_whole) {
    check.Writes(name, result, shape);
  } else {
    check.WritesStatisticsRows(name, result, shape);
  }
}

// The first dimension of a matrix; 0 for other tensors, whose shape is wrong.
int64_t RowsOf(const ConstTensorView& x) {
  return x.rank() == 2 ? x.shape()[0] : 0;
}

}  // namespace

namespace op {

absl::Status Attend::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckBlock(check, block));
  const Dims& shape = block.query.shape();
  Writes(check, block, "output", state.output, shape);
  check.WritesStatisticsRows("log_sum_exp", state.log_sum_exp,
                             WithoutLast(shape));
  return check.status();
}

absl::Status AttendGradient::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckBlock(check, block));
  const Dims& shape = block.query.shape();
  check.Reads("output_gradient", gradients.output_gradient, shape)
      .ReadsStatisticsRows("log_sum_exp", gradients.log_sum_exp,
                           WithoutLast(shape))
      .Requires(gradients.delta.has_value() != block.is_whole,
                "\"delta\" should be given unless the block is whole.");
  if (block.is_whole) {
    check.Reads("output", gradients.output, shape);
  } else {
    check.ReadsStatisticsRows("output", gradients.output, shape);
  }
  if (gradients.delta.has_value()) {
    check.ReadsStatisticsRows("delta", *gradients.delta, WithoutLast(shape));
  }
  Writes(check, block, "query_gradient", gradients.query_gradient, shape);
  Writes(check, block, "key_gradient", gradients.key_gradient,
         block.key.shape());
  Writes(check, block, "value_gradient", gradients.value_gradient,
         block.key.shape());
  return check.status();
}

absl::Status MaxScores::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckBlock(check, block));
  check
      .Requires(block.scale > 0, absl::StrCat("scale is ", block.scale,
                                              "; it should be positive."))
      .Requires(block.cap == 0,
                absl::StrCat("cap is ", block.cap, "; it should be 0."))
      .WritesStatistics("max_scores", max_scores, {{block.query.shape()[2]}});
  return check.status();
}

absl::Status RowDots::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("output_gradient", output_gradient));
  const Dims& shape = output_gradient.shape();
  if (shape.size() != 3 && shape.size() != 4) {
    check.Requires(false, absl::StrCat("\"output_gradient\" has shape ",
                                       DimsToString(shape),
                                       "; it should have 3 or 4 dimensions."));
    return check.status();
  }
  if (output.dtype() == output_gradient.dtype()) {
    check.Reads("output", output, shape);
  } else {
    check.ReadsStatisticsRows("output", output, shape);
  }
  check.WritesStatisticsRows("dots", dots,
                             std::span(shape).first(shape.size() - 1));
  return check.status();
}

absl::Status AddSinks::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("sinks", sinks, 1));
  const std::array<int64_t, 2> shape = {RowsOf(log_sum_exp), sinks.shape()[0]};
  check.WritesStatistics("log_sum_exp", log_sum_exp, shape)
      .WritesStatistics("factors", factors, shape);
  return check.status();
}

absl::Status SinkGradients::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("sinks", sinks, 1));
  const std::array<int64_t, 2> shape = {RowsOf(log_sum_exp), sinks.shape()[0]};
  check.ReadsStatistics("log_sum_exp", log_sum_exp, shape)
      .WritesStatistics("delta", delta, shape);
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel
