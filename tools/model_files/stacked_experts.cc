#include "tools/model_files/stacked_experts.h"

#include <cmath>
#include <limits>

namespace tessera::model_files {

std::vector<int64_t> StackedExperts::FileShape() const {
  if (columns == 0) return {experts, rows};
  return {experts, columns, rows};
}

int64_t StackedExperts::FileRow(int64_t row) const {
  const int64_t half = rows / 2;
  return alternates ? row % half * 2 + row / half : row;
}

void StackedExperts::ToFile(std::span<const float> matrix,
                            std::span<float> file) const {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t place = FileRow(row);
    for (int64_t column = 0; column < width(); ++column) {
      file[static_cast<size_t>(column * rows + place)] =
          matrix[static_cast<size_t>(row * width() + column)];
    }
  }
}

void StackedExperts::FromFile(std::span<const float> file,
                              std::span<float> matrix) const {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t place = FileRow(row);
    for (int64_t column = 0; column < width(); ++column) {
      matrix[static_cast<size_t>(row * width() + column)] =
          file[static_cast<size_t>(column * rows + place)];
    }
  }
}

void DecodeMxfp4(std::span<const std::byte> blocks,
                 std::span<const std::byte> scales, std::span<float> numbers) {
  // One bit of sign, two of exponent and one of mantissa.
  constexpr float kValues[16] = {0,    0.5,  1,  1.5,  2,  3,  4,  6,
                                 -0.f, -0.5, -1, -1.5, -2, -3, -4, -6};
  constexpr int kBias = 127, kNaN = 255;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto pair = std::to_integer<unsigned>(blocks[i / 2]);
    const float value = kValues[i % 2 == 0 ? pair & 15 : pair >> 4];
    const int exponent = std::to_integer<int>(scales[i / kMxfp4Group]);
    numbers[i] = exponent == kNaN ? std::numeric_limits<float>::quiet_NaN()
                                  : std::ldexp(value, exponent - kBias);
  }
}

}  // namespace tessera::model_files
