#include "offload/pressure/pressure_policy.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera::offload {
namespace {

struct Row {
  std::string_view name;
  PressureLevel acts_at;
  double aggressiveness;
};

constexpr std::array<Row, 4> kRows = {
    {{"conservative", PressureLevel::kCritical, 0.2},
     {"balanced", PressureLevel::kHigh, 0.5},
     {"aggressive", PressureLevel::kElevated, 0.8},
     {"extreme", PressureLevel::kModerate, 1.0}}};

const Row& RowOf(PressureStrategy strategy) {
  return kRows[static_cast<size_t>(strategy)];
}

}  // namespace

std::string_view PressureStrategyName(PressureStrategy strategy) {
  return RowOf(strategy).name;
}

absl::StatusOr<PressureStrategy> ParsePressureStrategy(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<PressureStrategy>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "strategy \"", absl::CHexEscape(name.substr(0, 40)),
      "\" is unknown; allowed are conservative, balanced, aggressive, "
      "extreme"));
}

PressureLevel PressurePolicy::acts_at() const {
  return RowOf(strategy_).acts_at;
}

double PressurePolicy::aggressiveness() const {
  return RowOf(strategy_).aggressiveness;
}

int64_t PressurePolicy::BytesToMove(const MemoryReading& reading,
                                    int64_t movable) const {
  const auto most = static_cast<double>(movable);
  double bytes = aggressiveness() * most;
  for (const MemoryLimit& limit : reading.limits) {
    bytes = std::max(
        bytes, static_cast<double>(limit.used) -
                   (threshold() - margin_) * static_cast<double>(limit.limit));
  }
  return bytes >= most ? movable : static_cast<int64_t>(std::ceil(bytes));
}

}  // namespace tessera::offload
