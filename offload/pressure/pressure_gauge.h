// PressureGauge: converts readings of memory to levels of pressure; and
// ReturnFreeMemory, which reduces the pressure.
#ifndef TESSERA_OFFLOAD_PRESSURE_PRESSURE_GAUGE_H_
#define TESSERA_OFFLOAD_PRESSURE_PRESSURE_GAUGE_H_

#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "offload/pressure/system_memory.h"

namespace tessera::offload {

// Returns the process's free heap memory to the system.
//
//   TESSERA_RETURN_IF_ERROR(tier.Drop("layer.7"));
//   ReturnFreeMemory();
//
// glibc does not do this by itself: it maps only blocks of 128 KiB or more,
// raises that limit up to 32 MiB whenever such a block is freed, and keeps free
// memory below the top of its heap.
//
// Takes some microseconds for each free run of pages in every arena. Returns
// false if no memory was returned, or the C library is not glibc.
bool ReturnFreeMemory();

// A gauge whose level of memory pressure rises at once and falls with a delay.
//
//   PressureGauge gauge;
//   PressureLevel level = gauge.Update(reading, now_ns);
//
// A level begins at its threshold. It ends only when the pressure has been
// below the threshold minus `margin` for `hold_ns`, so that pressure that
// oscillates around a threshold, or falls because data was just offloaded, does
// not switch offloading on and off.
//
// The pressure is used / limit of the tightest limit. Stalls raise it, since
// tasks that wait for memory show pressure whatever the numbers of bytes are.

enum class PressureLevel {
  kNone,      // below 40 %
  kModerate,  // from 40 % on
  kElevated,  // 60 %
  kHigh,      // 75 %
  kCritical,  // 90 %
};

inline constexpr std::array<double, 5> kLevelThresholds = {0, 0.40, 0.60, 0.75,
                                                           0.90};

constexpr double ThresholdOf(PressureLevel level) {
  return kLevelThresholds[static_cast<size_t>(level)];
}

// "none", "moderate", "elevated", "high", "critical".
std::string_view PressureLevelName(PressureLevel level);
inline std::ostream& operator<<(std::ostream& os, PressureLevel level) {
  return os << PressureLevelName(level);
}

struct GaugeOptions {
  double margin = 0.05;
  int64_t hold_ns = 2'000'000'000;
  // The percentages of the last ten seconds in which some tasks, or all of
  // them, waited for memory, from which the level is at least kHigh, or
  // kCritical. Above 100: stalls are ignored.
  double some_stall = 20;
  double full_stall = 10;
};

// used / limit, raised by stalls.
double PressureOf(const MemoryReading& reading, const GaugeOptions& options);

// Not safe for concurrent use.
class PressureGauge {
 public:
  explicit PressureGauge(GaugeOptions options = {}) : options_(options) {}

  const GaugeOptions& options() const { return options_; }
  PressureLevel level() const { return level_; }

  // `now_ns` is from a monotonic clock.
  PressureLevel Update(const MemoryReading& reading, int64_t now_ns);

 private:
  const GaugeOptions options_;
  PressureLevel level_ = PressureLevel::kNone;
  // When the pressure last upheld each level.
  std::array<int64_t, 5> upheld_ns_ = {};
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_PRESSURE_GAUGE_H_
