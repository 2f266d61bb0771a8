// PressurePolicy: when to offload, and how much.
//
//   PressurePolicy policy(PressureStrategy::kAggressive);
//   if (policy.Acts(level)) bytes = policy.BytesToMove(reading, movable);
//
// | strategy     | acts at | aggressiveness |
// | conservative |    90 % |            0.2 |
// | balanced     |    75 % |            0.5 |
// | aggressive   |    60 % |            0.8 |
// | extreme      |    40 % |            1.0 |
//
// When it acts it moves the share `aggressiveness` of what can be moved; where
// that is too little to get every limit below the threshold less the gauge's
// margin, as much as that takes; and never more than can be moved.
#ifndef TESSERA_OFFLOAD_PRESSURE_PRESSURE_POLICY_H_
#define TESSERA_OFFLOAD_PRESSURE_PRESSURE_POLICY_H_

#include <cstdint>
#include <ostream>
#include <string_view>

#include "absl/status/statusor.h"
#include "offload/pressure/pressure_gauge.h"
#include "offload/pressure/reading/memory_reading.h"

namespace tessera::offload {

enum class PressureStrategy { kConservative, kBalanced, kAggressive, kExtreme };

// "conservative", "balanced", "aggressive", "extreme".
std::string_view PressureStrategyName(PressureStrategy strategy);
absl::StatusOr<PressureStrategy> ParsePressureStrategy(std::string_view name);
inline std::ostream& operator<<(std::ostream& os, PressureStrategy strategy) {
  return os << PressureStrategyName(strategy);
}

class PressurePolicy {
 public:
  explicit PressurePolicy(PressureStrategy strategy, double margin = 0.05)
      : strategy_(strategy), margin_(margin) {}

  PressureStrategy strategy() const { return strategy_; }
  PressureLevel acts_at() const;
  double threshold() const { return ThresholdOf(acts_at()); }
  double aggressiveness() const;

  bool Acts(PressureLevel level) const { return level >= acts_at(); }

  // `movable` bytes, at least 0, can be moved. The answer is between 0 and
  // that.
  int64_t BytesToMove(const MemoryReading& reading, int64_t movable) const;

 private:
  PressureStrategy strategy_;
  double margin_;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_PRESSURE_POLICY_H_
