#include "offload/pressure/pressure_policy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::offload {

const PressurePolicy& PressurePolicy::Of(PressureStrategy strategy) {
  return kPressurePolicies[static_cast<size_t>(strategy)];
}

absl::StatusOr<PressurePolicy> PressurePolicy::Parse(std::string_view name) {
  for (const PressurePolicy& policy : kPressurePolicies) {
    if (policy.name == name) return policy;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("offload strategy \"", absl::CHexEscape(name.substr(0, 40)),
                   "\" is unknown; allowed: ", PressureStrategyNames()));
}

int64_t PressurePolicy::BytesToMove(const MemoryReading& reading,
                                    int64_t movable,
                                    const GaugeOptions& gauge) const {
  if (PressureOf(reading, gauge) < threshold()) return 0;
  const auto most = static_cast<double>(movable);
  double bytes = aggressiveness * most;
  for (const MemoryLimit& limit : reading.limits) {
    bytes = std::max(bytes, static_cast<double>(limit.used) -
                                (threshold() - gauge.margin) *
                                    static_cast<double>(limit.limit));
  }
  return bytes >= most ? movable : static_cast<int64_t>(std::ceil(bytes));
}

std::string PressureStrategyNames() {
  return absl::StrJoin(kPressurePolicies, ", ",
                       [](std::string* out, const PressurePolicy& policy) {
                         absl::StrAppend(out, policy.name);
                       });
}

}  // namespace tessera::offload
