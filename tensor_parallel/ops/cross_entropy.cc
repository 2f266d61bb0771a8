#include "tensor_parallel/ops/cross_entropy.h"

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

namespace {

absl::Status CheckLossTerms(const LossTerms& terms, IndexRange held) {
  if (!(terms.label_smoothing >= 0 && terms.label_smoothing < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CrossEntropyGradient: label smoothing of ", terms.label_smoothing,
        "; it should be at least 0 and below 1."));
  }
  if (!(terms.z_loss >= 0) || std::isinf(terms.z_loss)) {
    return absl::InvalidArgumentError(
        absl::StrCat("CrossEntropyGradient: a z-loss of ", terms.z_loss,
                     "; it should be at least 0 and finite."));
  }
  if (terms.label_smoothing > 0 && terms.vocabulary < held.end) {
    return absl::InvalidArgumentError(absl::StrCat(
        "CrossEntropyGradient: labels are smoothed over a vocabulary of ",
        terms.vocabulary, " words, and words up to ", held.end, " are held."));
  }
  return absl::OkStatus();
}

}  // namespace

namespace op {

absl::Status RowMax::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  check.WritesStatistics("largest", largest, {{logits.shape()[0]}});
  return check.status();
}

absl::Status SumExp::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  check.ReadsStatistics("largest", largest, {{logits.shape()[0]}})
      .WritesStatistics("sum", sum, {{logits.shape()[0]}});
  return check.status();
}

absl::Status MaxAndSumExp::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  check.WritesStatistics("largest", largest, {{logits.shape()[0]}})
      .WritesStatistics("sum", sum, {{logits.shape()[0]}});
  return check.status();
}

absl::Status Pick::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t rows = logits.shape()[0];
  check.Reads("logits", logits, {{rows, held.size()}})
      .ReadsList("targets", targets, DType::kI64, rows)
      .WritesStatistics("picked", picked, {{rows}});
  return check.status();
}

absl::Status CrossEntropyLosses::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("largest", largest, 1));
  check.ReadsStatistics("largest", largest, largest.shape())
      .ReadsStatistics("sum", sum, largest.shape())
      .ReadsStatistics("picked", picked, largest.shape())
      .ReadsList("targets", targets, DType::kI64, largest.shape()[0])
      .WritesList("losses", losses, DType::kF64, largest.shape()[0]);
  return check.status();
}

absl::Status CrossEntropyGradient::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckLossTerms(terms, held));
  TESSERA_RETURN_IF_ERROR(check.Leads("logits", logits, 2));
  const int64_t rows = logits.shape()[0];
  check.Writes("logits", logits, {{rows, held.size()}})
      .ReadsStatistics("largest", largest, {{rows}})
      .ReadsStatistics("sum", sum, {{rows}})
      .ReadsList("targets", targets, DType::kI64, rows)
      .ReadsList("scales", scales, DType::kF64, rows);
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel
