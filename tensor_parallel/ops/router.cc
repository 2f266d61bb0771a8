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

absl::Status RouteGradient::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t tokens = logits.shape()[0], count = logits.shape()[1];
  TESSERA_RETURN_IF_ERROR(CheckRouter("RouteGradient", options, count));
  const int64_t sequences = balance.rank() == 2 ? balance.shape()[0] : -1;
  check.ReadsList("experts", experts, DType::kI64, tokens * options.per_token)
      .ReadsStatistics("weights_gradient", weights_gradient,
                       {{tokens, options.per_token}})
      .ReadsStatistics("balance", balance,
                       {{std::max<int64_t>(sequences, 0), count}})
      .Requires(sequences == 0 || (sequences > 0 && tokens % sequences == 0),
                absl::StrCat("\"balance\" is of ", sequences, " sequences of ",
                             tokens,
                             " tokens; give a number that divides "
                             "them, or 0."))
      .WritesStatistics("logits_gradient", logits_gradient, {{tokens, count}});
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel
