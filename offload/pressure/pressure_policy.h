// PressurePolicy: at which pressure to offload, and how much.
//
//   TESSERA_ASSIGN_OR_RETURN(const PressurePolicy policy,
//                            PressurePolicy::Parse("aggressive"));
//   int64_t bytes = policy.BytesToMove(reading, movable);
//
// | strategy     | threshold | aggressiveness |
// | ------------ | --------- | -------------- |
// | conservative |      0.90 |            0.2 |
// | balanced     |      0.75 |            0.5 |
// | aggressive   |      0.60 |            0.8 |
// | extreme      |      0.40 |            1.0 |
//
// A reading is a list of limits from any sources: SystemMemory for the host,
// LimitOf for the budget of a tier or of a device's state, and for the memory
// of a GPU a MemoryLimit from the caller's driver library.
#ifndef TESSERA_OFFLOAD_PRESSURE_PRESSURE_POLICY_H_
#define TESSERA_OFFLOAD_PRESSURE_PRESSURE_POLICY_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "offload/pressure/pressure_gauge.h"
#include "offload/pressure/system_memory.h"
#include "offload/tier/accounting.h"

namespace tessera::offload {

enum class PressureStrategy { kConservative, kBalanced, kAggressive, kExtreme };

struct PressurePolicy {
  PressureStrategy strategy = PressureStrategy::kConservative;
  std::string_view name = "conservative";
  // The level at whose threshold it acts.
  PressureLevel acts_at = PressureLevel::kCritical;
  // The share of the movable bytes that is moved at once.
  double aggressiveness = 0.2;
  std::string_view description = "";

  static const PressurePolicy& Of(PressureStrategy strategy);
  // InvalidArgument, with the allowed names, for an unknown one.
  static absl::StatusOr<PressurePolicy> Parse(std::string_view name);

  double threshold() const { return ThresholdOf(acts_at); }

  // The bytes to move of `movable` (at least 0): 0 if the pressure is below the
  // threshold. Otherwise the share `aggressiveness`, or more if that is needed
  // to get every limit below the threshold minus the gauge's margin, but at
  // most `movable`.
  int64_t BytesToMove(const MemoryReading& reading, int64_t movable,
                      const GaugeOptions& gauge = {}) const;
};

// All policies, in ascending order of aggressiveness.
inline constexpr std::array<PressurePolicy, 4> kPressurePolicies = {
    {{PressureStrategy::kConservative, "conservative", PressureLevel::kCritical,
      0.2, "moves a fifth of the blocks when memory is nearly used up"},
     {PressureStrategy::kBalanced, "balanced", PressureLevel::kHigh, 0.5,
      "moves half of the blocks at high pressure"},
     {PressureStrategy::kAggressive, "aggressive", PressureLevel::kElevated,
      0.8, "moves most blocks early, to keep memory free"},
     {PressureStrategy::kExtreme, "extreme", PressureLevel::kModerate, 1.0,
      "moves all blocks as soon as there is some pressure"}}};

// "conservative, balanced, aggressive, extreme".
std::string PressureStrategyNames();

// The budget of an accounting as a limit. Precondition: it is not kUnlimited.
inline MemoryLimit LimitOf(std::string source, const Usage& usage) {
  return {.source = std::move(source),
          .used = usage.current,
          .limit = usage.budget};
}

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_PRESSURE_POLICY_H_
