#include "tensor_parallel/ops/rotary.h"

#include <string_view>

#include "absl/strings/str_cat.h"

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

}  // namespace tessera::tensor_parallel
