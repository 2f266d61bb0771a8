#include "tensor_parallel/ops/router.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

namespace {

absl::Status CheckRouter(std::string_view operation,
                         const RouterOptions& options, int64_t experts) {
  if (options.per_token < 1 || options.per_token > experts) {
    return absl::InvalidArgumentError(
        absl::StrCat(operation, ": ", options.per_token,
                     " experts for a token; it should be at least 1 and at "
                     "most their number, which is ",
                     experts, "."));
  }
  const int64_t groups = options.groups;
  if (groups == 1) return absl::OkStatus();
  if (groups < 1 || groups > kMostRouterGroups || experts % groups != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        operation, ": ", groups, " groups of ", experts,
        " experts; it should be a divisor of their number, from 1 to ",
        kMostRouterGroups, "."));
  }
  const int64_t size = experts / groups;
  const int64_t chosen = options.groups_per_token;
  if (chosen < 1 || chosen > groups || options.per_token > chosen * size) {
    return absl::InvalidArgumentError(absl::StrCat(
        operation, ": ", chosen, " groups for a token, of ", groups,
        " groups of ", size, " experts; it should be from 1 to ", groups,
        ", with at least ", options.per_token, " experts together."));
  }
  if (options.group_terms < 1 ||
      options.group_terms > std::min<int64_t>(2, size)) {
    return absl::InvalidArgumentError(
        absl::StrCat(operation, ": the score of a group of ", size,
                     " experts is the sum of ", options.group_terms,
                     "; it should be 1 or 2, and at most their number."));
  }
  return absl::OkStatus();
}

}  // namespace

namespace op {

absl::Status Route::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t tokens = logits.shape()[0], count = logits.shape()[1];
  TESSERA_RETURN_IF_ERROR(CheckRouter("Route", options, count));
  check.ReadsStatistics("bias", bias, {{bias.element_count() == 0 ? 0 : count}})
      .WritesStatistics("weights", weights, {{tokens, options.per_token}})
      .WritesList("experts", experts, DType::kI64, tokens * options.per_token);
  return check.status();
}

absl::Status GroupByExpert::Check(OperandChecker& check) const {
  const bool is_matrix = experts.rank() == 2 && loads.rank() == 2;
  const int64_t chosen = experts.element_count();
  const int64_t token_count = is_matrix ? experts.shape()[0] : 0;
  const int64_t sequences = is_matrix ? loads.shape()[0] : 0;
  const int64_t rows =
      padded && is_matrix ? loads.shape()[1] * capacity : chosen;
  check
      .Requires(is_matrix && (chosen == 0 || loads.shape()[1] > 0),
                "\"experts\" and \"loads\" should be matrices: [tokens, "
                "per_token] and [sequences, experts].")
      .Requires(
          sequences == 0 ? token_count == 0 : token_count % sequences == 0,
          absl::StrCat("\"loads\" is of ", sequences, " sequences of ",
                       token_count,
                       " tokens; give a number that divides them."))
      .Requires(!padded || capacity >= 0,
                "padded rows need a capacity of at least 0.")
      .ReadsList("experts", experts, DType::kI64, chosen)
      .WritesList("loads", loads, DType::kI64, loads.element_count())
      .WritesList("slots", slots, DType::kI64, rows)
      .WritesList("tokens", tokens, DType::kI64, rows);
  return check.status();
}

absl::Status RouteGradient::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t tokens = logits.shape()[0], count = logits.shape()[1];
  TESSERA_RETURN_IF_ERROR(CheckRouter("RouteGradient", options, count));
  const int64_t sequences = loads.rank() == 2 ? loads.shape()[0] : -1;
  check.ReadsList("experts", experts, DType::kI64, tokens * options.per_token)
      .ReadsStatistics("weights_gradient", weights_gradient,
                       {{tokens, options.per_token}})
      .ReadsList("loads", loads, DType::kI64,
                 std::max<int64_t>(sequences, 0) * count)
      .Requires(
          sequences == 0 || (sequences > 0 && tokens % sequences == 0),
          absl::StrCat("\"loads\" is of ", sequences, " sequences of ", tokens,
                       " tokens; give a number that divides "
                       "them, or 0."))
      .WritesStatistics("logits_gradient", logits_gradient, {{tokens, count}});
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel
