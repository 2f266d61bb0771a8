#include "pipeline/draw/ticks.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::pipeline {

std::vector<double> TicksTo(double last, int most) {
  std::vector<double> ticks = {0};
  if (!(last > 0) || !std::isfinite(last)) return ticks;
  const double least = last / (most - 1);
  const double power = std::pow(10, std::floor(std::log10(least)) - 1);
  double step = power;
  for (const double factor : {2, 5, 10, 20, 50, 100, 200}) {
    if (std::floor(last / step * (1 + 1e-12)) < most) break;
    step = factor * power;
  }
  const double count = std::floor(last / step * (1 + 1e-12));
  for (double i = 1; i <= count; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string NumberText(double value) { return absl::StrFormat("%.5g", value); }

std::string BytesText(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.3g %s", value, kUnits[unit]);
}

}  // namespace tessera::pipeline
