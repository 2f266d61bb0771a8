#include "offload/pressure/pressure_gauge.h"

#include <algorithm>
#include <cstdlib>  // defines __GLIBC__ with glibc

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tessera::offload {

bool ReturnFreeMemory() {
#ifdef __GLIBC__
  return malloc_trim(0) == 1;
#else
  return false;
#endif
}

std::string_view PressureLevelName(PressureLevel level) {
  constexpr std::array<std::string_view, 5> kNames = {
      "none", "moderate", "elevated", "high", "critical"};
  const auto index = static_cast<size_t>(level);
  return index < kNames.size() ? kNames[index] : "invalid";
}

double PressureOf(const MemoryReading& reading, const GaugeOptions& options) {
  double pressure = reading.pressure();
  if (!reading.stall.has_value()) return pressure;
  if (reading.stall->some_avg10 >= options.some_stall) {
    pressure = std::max(pressure, ThresholdOf(PressureLevel::kHigh));
  }
  if (reading.stall->full_avg10 >= options.full_stall) {
    pressure = std::max(pressure, ThresholdOf(PressureLevel::kCritical));
  }
  return pressure;
}

PressureLevel PressureGauge::Update(const MemoryReading& reading,
                                    int64_t now_ns) {
  const double pressure = PressureOf(reading, options_);
  int reached = 0;
  for (int i = 1; i < static_cast<int>(kLevelThresholds.size()); ++i) {
    const auto at = static_cast<size_t>(i);
    if (pressure >= kLevelThresholds[at] - options_.margin) {
      upheld_ns_[at] = now_ns;
    }
    if (pressure >= kLevelThresholds[at]) reached = i;
  }
  int level = std::max(static_cast<int>(level_), reached);
  while (level > reached &&
         now_ns - upheld_ns_[static_cast<size_t>(level)] >= options_.hold_ns &&
         now_ns != upheld_ns_[static_cast<size_t>(level)]) {
    --level;
  }
  return level_ = static_cast<PressureLevel>(level);
}

}  // namespace tessera::offload
