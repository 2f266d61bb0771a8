#include "tensor_parallel/ops/rotary.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {

namespace {

absl::Status Expect(bool holds, std::string_view name, double value,
                    std::string_view range) {
  if (holds && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; it should be ", range, "."));
}

}  // namespace

absl::Status RotaryFrequencies::Validate() const {
  constexpr std::string_view kPositive = "positive and finite";
  absl::Status status = Expect(base > 0, "base", base, kPositive);
  if (scaling == RotaryScaling::kNone) return status;
  status.Update(Expect(factor > 0, "factor", factor, kPositive));
  if (scaling == RotaryScaling::kLinear) return status;
  const auto positions = static_cast<double>(original_positions);
  status.Update(Expect(low_turns > 0, "low_turns", low_turns, kPositive));
  status.Update(Expect(high_turns > low_turns, "high_turns", high_turns,
                       absl::StrCat("above low_turns, ", low_turns)));
  status.Update(Expect(original_positions > 0, "original_positions", positions,
                       kPositive));
  return status;
}

namespace op {

absl::Status Rotate::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 3));
  const int64_t d = x.shape()[2];
  check.Writes("x", x, x.shape())
      .ReadsList("positions", positions, DType::kI64, x.shape()[0])
      .Requires(d % 2 == 0,
                absl::StrCat("\"x\" has heads of ", d,
                             " elements; their number should be even."));
  const absl::Status valid = frequencies.Validate();
  check.Requires(valid.ok(), std::string(valid.message()));
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel
