#include "tensor_parallel/ops_cpu/attention/attention.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "tensor_parallel/ops/attention_block.h"
#include "tensor_parallel/ops_cpu/attention/attend.h"
#include "tensor_parallel/ops_cpu/blas.h"
#include "tensor_parallel/ops_cpu/operand/operand_checker.h"

namespace tessera::tensor_parallel::cpu {
namespace {

absl::Status CheckBlock(OperandChecker& check, const AttentionBlock& block) {
  TESSERA_RETURN_IF_ERROR(check.Leads("query", block.query, 3));
  TESSERA_RETURN_IF_ERROR(
      check
          .Requires(block.key.rank() == 3,
                    absl::StrCat("\"key\" has ", block.key.rank(),
                                 " dimensions; it should have 3."))
          .status());
  const int64_t heads = block.query.shape()[1], d = block.query.shape()[2];
  const int64_t keys = block.key.shape()[0], kv_heads = block.key.shape()[1];
  const bool divides = kv_heads == 0 ? heads == 0 : heads % kv_heads == 0;
  return check.Reads("key", block.key, {{keys, kv_heads, d}})
      .Reads("value", block.value, {{keys, kv_heads, d}})
      .Counts("query_positions", block.query_positions.size(),
              block.query.shape()[0])
      .Counts("key_positions", block.key_positions.size(), keys)
      .Requires(divides,
                absl::StrCat("\"query\" has ", heads, " heads, \"key\" ",
                             kv_heads, "; the second should divide the first."))
      .Requires(kv_heads == 0 || d <= kLargestBlasSize / kv_heads,
                absl::StrCat("\"key\" has ", kv_heads, " heads of ", d,
                             " elements; their product may be at most ",
                             kLargestBlasSize, "."))
      .status();
}

}  // namespace

absl::Status Attend(const AttentionBlock& block, const AttentionState& state) {
  OperandChecker check("Attend");
  TESSERA_RETURN_IF_ERROR(CheckBlock(check, block));
  const auto& shape = block.query.shape();
  check.WritesStatistics("output", state.output, shape)
      .WritesStatistics("log_sum_exp", state.log_sum_exp,
                        {{shape[0], shape[1]}});
  TESSERA_RETURN_IF_ERROR(check.status());
  block.query.dtype() == DType::kF64 ? RunAttend<double>(block, state)
                                     : RunAttend<float>(block, state);
  return absl::OkStatus();
}

absl::Status AttendGradient(const AttentionBlock& block,
                            const AttentionGradients& gradients) {
  OperandChecker check("AttendGradient");
  TESSERA_RETURN_IF_ERROR(CheckBlock(check, block));
  const auto& shape = block.query.shape();
  check.Reads("output_gradient", gradients.output_gradient, shape)
      .ReadsStatistics("log_sum_exp", gradients.log_sum_exp,
                       {{shape[0], shape[1]}})
      .ReadsStatistics("delta", gradients.delta, {{shape[0], shape[1]}})
      .WritesStatistics("query_gradient", gradients.query_gradient, shape)
      .WritesStatistics("key_gradient", gradients.key_gradient,
                        block.key.shape())
      .WritesStatistics("value_gradient", gradients.value_gradient,
                        block.key.shape());
  TESSERA_RETURN_IF_ERROR(check.status());
  block.query.dtype() == DType::kF64
      ? RunAttendGradient<double>(block, gradients)
      : RunAttendGradient<float>(block, gradients);
  return absl::OkStatus();
}

}  // namespace tessera::tensor_parallel::cpu
