#include "offload/codec/scale_group.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace tessera::offload {

constexpr double kSteps = 127;

ScaleGroup QuantizeScales(std::span<const float> scales,
                          std::span<int8_t> codes) {
  double sum = 0;
  for (const float scale : scales) sum += scale;
  const float mean =
      static_cast<float>(sum / static_cast<double>(scales.size()));
  double widest = 0;
  for (const float scale : scales) {
    widest = std::max(widest, std::fabs(double{scale} - double{mean}));
  }
  const float step = static_cast<float>(widest / kSteps);
  for (size_t i = 0; i < scales.size(); ++i) {
    const double code =
        step == 0
            ? 0
            : std::nearbyint((double{scales[i]} - double{mean}) / double{step});
    codes[i] = static_cast<int8_t>(std::clamp(code, -kSteps, kSteps));
  }
  return {mean, step};
}

void DequantizeScales(ScaleGroup group, std::span<const int8_t> codes,
                      std::span<float> scales) {
  constexpr double kMost = std::numeric_limits<float>::max();
  for (size_t i = 0; i < codes.size(); ++i) {
    const double scale =
        double{group.mean} + double{group.step} * static_cast<double>(codes[i]);
    scales[i] = static_cast<float>(std::clamp(scale, 0.0, kMost));
  }
}

}  // namespace tessera::offload
