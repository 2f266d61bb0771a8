#include "tensor_parallel/ops/elementwise.h"

#include <cmath>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"

namespace tessera::tensor_parallel {

namespace op {

absl::Status AddBias::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  check.Writes("x", x, x.shape()).Reads("bias", bias, {{x.shape()[1]}});
  return check.status();
}

absl::Status SumRows::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("gradient", gradient, 2));
  check.WritesEither("bias_gradient", bias_gradient, {{gradient.shape()[1]}});
  return check.status();
}

absl::Status Copy::Check(OperandChecker& check) const {
  check.Copies("x", x, "y", y);
  return check.status();
}

absl::Status Add::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  check.WritesEither("y", y, x.shape());
  return check.status();
}

absl::Status Scale::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  check.Writes("x", x, x.shape());
  return check.status();
}

absl::Status SoftCap::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  check.Writes("x", x, x.shape())
      .Requires(cap > 0 && std::isfinite(cap),
                absl::StrCat("cap is ", cap, "; it should be positive."));
  return check.status();
}

absl::Status Fill::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  check.Writes("x", x, x.shape());
  return check.status();
}

absl::Status Cast::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x));
  if (x.dtype() == DType::kF32 &&
      (y.dtype() == DType::kBF16 || y.dtype() == DType::kF16)) {
    TESSERA_RETURN_IF_ERROR(check.Leads("y", y));  // x is its statistics.
    check.Writes("y", y, x.shape());
  } else {
    check.WritesEither("y", y, x.shape());
  }
  return check.status();
}

absl::Status Dropout::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  const auto rows = static_cast<int64_t>(mask.rows.size());
  check.Writes("x", x, {{rows, x.shape()[1]}})
      .Requires(x.IsContiguous(),
                absl::StrCat("\"x\" has strides ", DimsToString(x.strides()),
                             "; it should be contiguous."))
      .Requires(mask.probability >= 0 && mask.probability < 1,
                absl::StrCat("the probability is ", mask.probability,
                             "; it must be in [0, 1)."));
  return check.status();
}

absl::Status ScaleRows::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  check.ReadsStatistics("scales", scales, {{x.shape()[0]}})
      .Writes("y", y, x.shape());
  return check.status();
}

absl::Status ScaleRowsGradient::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("gradient", gradient, 2));
  check.ReadsStatistics("scales", scales, {{gradient.shape()[0]}})
      .Reads("x", x, gradient.shape())
      .Writes("x_gradient", x_gradient, gradient.shape())
      .WritesStatistics("scales_gradient", scales_gradient,
                        {{gradient.shape()[0]}});
  return check.status();
}

absl::Status Sum::Check(OperandChecker& check) const {
  check.ReadsList("x", x, DType::kF64, x.element_count())
      .WritesList("total", total, DType::kF64, 1);
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel
