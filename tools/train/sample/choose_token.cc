#include "tools/train/sample/choose_token.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::train {
namespace {

absl::Status CheckChoice(std::span<const double> logits, double temperature) {
  if (logits.empty()) {
    return absl::InvalidArgumentError("no logits to choose a token by");
  }
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    return absl::InvalidArgumentError(
        absl::StrCat("temperature ", temperature,
                     "; it must be at least 0 and finite, such as 0.8"));
  }
  const auto bad =
      absl::c_find_if(logits, [](double x) { return !std::isfinite(x); });
  if (bad == logits.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the model's logit of token ", bad - logits.begin(), " is ",
                   *bad, ": its weights have diverged"));
}

}  // namespace

absl::StatusOr<int64_t> ChooseToken(std::span<const double> logits,
                                    double temperature, double uniform) {
  TESSERA_RETURN_IF_ERROR(CheckChoice(logits, temperature));
  const auto largest = absl::c_max_element(logits);
  if (temperature == 0) return largest - logits.begin();
  std::vector<double> sums(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += std::exp((logits[i] - *largest) / temperature);
    sums[i] = sum;
  }
  // The first whose sum is above: never one of probability 0.
  const auto chosen = std::upper_bound(sums.begin(), sums.end(), uniform * sum);
  if (chosen == sums.end()) return largest - logits.begin();
  return chosen - sums.begin();
}

}  // namespace tessera::train
