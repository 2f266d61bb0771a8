#include "offload/optimizer/step_scale.h"

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::offload::step_scale_internal {

absl::Status CheckNumbers(std::string_view optimizer,
                          std::initializer_list<NamedNumber> numbers) {
  for (const NamedNumber& number : numbers) {
    const bool is_below = number.limit == 0 || number.value < number.limit;
    if (std::isfinite(number.value) && number.value >= 0 && is_below) continue;
    const std::string allowed =
        number.limit == 0 ? std::string("a finite number of at least 0")
                          : absl::StrCat("at least 0 and below ", number.limit);
    return absl::InvalidArgumentError(absl::StrCat(optimizer, ": ", number.name,
                                                   " is ", number.value,
                                                   "; give ", allowed));
  }
  return absl::OkStatus();
}

absl::Status CheckThreads(std::string_view optimizer, int threads) {
  constexpr int kMost = 1024;
  if (threads >= 1 && threads <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(optimizer, ": ", threads, " threads; give 1 to ", kMost));
}

absl::Status CheckStep(std::string_view optimizer, int64_t step,
                       const StepScale& scale) {
  if (step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(optimizer, ": step ", step, "; the first one is step 1"));
  }
  return CheckNumbers(optimizer, {{"unscale", scale.unscale},
                                  {"clip_factor", scale.clip_factor}});
}

}  // namespace tessera::offload::step_scale_internal
