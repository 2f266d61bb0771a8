#include "tensor_parallel/ops/norms.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/operand_checker.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

namespace {

absl::Status CheckGradient(OperandChecker& check,
                           const ConstTensorView& gradient,
                           const ConstTensorView& x,
                           const ConstTensorView& inverse) {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  return check.Reads("gradient", gradient, x.shape())
      .ReadsStatistics("inverse", inverse, {{x.shape()[0]}})
      .status();
}

absl::Status CheckForward(OperandChecker& check, double epsilon,
                          const ConstTensorView& x,
                          const ConstTensorView& weight, const TensorView& y,
                          const TensorView& inverse) {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .Writes("y", y, x.shape())
      .WritesStatistics("inverse", inverse, {{x.shape()[0]}})
      .Requires(epsilon >= 0, absl::StrCat("epsilon is ", epsilon,
                                           "; it should be at least 0."));
  return check.status();
}

absl::Status CheckWidth(OperandChecker& check, int64_t width) {
  check.Requires(width >= 1, absl::StrCat("width is ", width,
                                          "; it should be at least 1."));
  return check.status();
}

}  // namespace

namespace op {

absl::Status RmsNorm::Check(OperandChecker& check) const {
  return CheckForward(check, epsilon, x, weight, y, inverse);
}

absl::Status RmsNormInputGradient::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .Writes("x_gradient", x_gradient, x.shape());
  return check.status();
}

absl::Status RmsNormSums::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  return check.WritesStatistics("sums", sums, {{x.shape()[0]}}).status();
}

absl::Status RmsNormOfSums::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckForward(check, epsilon, x, weight, y, inverse));
  check.ReadsStatistics("sums", sums, {{x.shape()[0]}});
  return CheckWidth(check, width);
}

absl::Status RmsNormGradientSums::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .WritesStatistics("sums", sums, {{x.shape()[0]}});
  return check.status();
}

absl::Status RmsNormInputGradientOfSums::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .ReadsStatistics("sums", sums, {{x.shape()[0]}})
      .Writes("x_gradient", x_gradient, x.shape());
  return CheckWidth(check, width);
}

absl::Status AddRmsNorm::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("residual", residual, 2));
  check.Reads("weight", weight, {{residual.shape()[1]}})
      .Reads("x", x, residual.shape())
      .Writes("x", x, residual.shape())
      .Writes("y", y, residual.shape())
      .WritesStatistics("inverse", inverse, {{residual.shape()[0]}})
      .Requires(epsilon >= 0, absl::StrCat("epsilon is ", epsilon,
                                           "; it should be at least 0."));
  return check.status();
}

absl::Status AddRmsNormInputGradient::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .Reads("residual_gradient", residual_gradient, x.shape())
      .Writes("x_gradient", x_gradient, x.shape());
  return check.status();
}

absl::Status AddRmsNormGradients::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.Reads("weight", weight, {{x.shape()[1]}})
      .Reads("residual_gradient", residual_gradient, x.shape())
      .Writes("x_gradient", x_gradient, x.shape())
      .WritesEither("weight_gradient", weight_gradient, {{x.shape()[1]}});
  return check.status();
}

absl::Status RmsNormWeightGradient::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(CheckGradient(check, gradient, x, inverse));
  check.WritesEither("weight_gradient", weight_gradient, {{x.shape()[1]}});
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel
