// ReturnFreeMemory: returns the process's free heap memory to the system.
//
//   TESSERA_RETURN_IF_ERROR(tier.Drop("layer.7"));
//   ReturnFreeMemory();
//
// glibc does not return freed blocks by itself: it maps only blocks of 128 KiB
// or more, raises that limit up to 32 MiB whenever such a block is freed, and
// keeps free memory below the top of its heap.
#ifndef TESSERA_OFFLOAD_PRESSURE_PRESSURE_GAUGE_H_
#define TESSERA_OFFLOAD_PRESSURE_PRESSURE_GAUGE_H_

#include <array>
#include <cstdint>
#include <ostream>
#include <string_view>

#include "offload/pressure/system_memory.h"

namespace tessera::offload {

// Some microseconds for each free run of pages, in every arena. False if
// nothing was handed back, or the C library is another than glibc.
bool ReturnFreeMemory();

// PressureGauge: levels of memory pressure that rise at once and fall late.
//
//   PressureGauge gauge;
//   PressureLevel level = gauge.Update(reading, now_ns);
//
// A level holds from its threshold on. It is left only when the pressure has
// been below the threshold less `margin` for `hold_ns`, so that what moves to
// and fro around a threshold, or falls because of what was just offloaded, does
// not switch anything to and fro.
//
// The pressure is used / limit of the tightest limit, or what stalls tell where
// that is more: tasks that wait for memory are in trouble whatever the numbers
// of bytes are.

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
  // Percent of the last ten seconds in which some tasks (at least kHigh) or all
  // of them (kCritical) waited for memory. Above 100: stalls do not count.
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

  // `now_ns` is of a clock that never goes back.
  PressureLevel Update(const MemoryReading& reading, int64_t now_ns);

 private:
  const GaugeOptions options_;
  PressureLevel level_ = PressureLevel::kNone;
  // When each level was last not left behind.
  std::array<int64_t, 5> upheld_ns_ = {};
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_PRESSURE_PRESSURE_GAUGE_H_
