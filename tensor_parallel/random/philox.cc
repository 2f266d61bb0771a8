#include "tensor_parallel/random/philox.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace tessera::tensor_parallel {
namespace {

// values[i] = the number of index first + i; `two_of(k)` returns the numbers of
// indices 2k and 2k + 1.
template <typename T, typename TwoOf>
void Fill(uint64_t first, std::span<T> values, const TwoOf& two_of) {
  size_t i = 0;
  if (first % 2 == 1 && !values.empty()) {
    values[i++] = static_cast<T>(two_of(first / 2)[1]);
  }
  for (; i + 1 < values.size(); i += 2) {
    const std::array<double, 2> two = two_of((first + i) / 2);
    values[i] = static_cast<T>(two[0]);
    values[i + 1] = static_cast<T>(two[1]);
  }
  if (i < values.size()) {
    values[i] = static_cast<T>(two_of((first + i) / 2)[0]);
  }
}

}  // namespace

// The logarithm's argument is in (0, 1].
std::array<double, 2> Philox::NormalsOf(const std::array<uint64_t, 2>& pair) {
  const double radius = std::sqrt(-2 * std::log(1 - UniformOf(pair[0])));
  const double angle = 2 * std::numbers::pi * UniformOf(pair[1]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double Philox::Normal(uint64_t index) const {
  return NormalsOf(PairOf(index / 2))[index % 2];
}

template <typename T>
void Philox::FillUniform(uint64_t first, std::span<T> values) const {
  Fill(first, values, [this](uint64_t k) {
    const std::array<uint64_t, 2> pair = PairOf(k);
    return std::array<double, 2>{UniformOf(pair[0]), UniformOf(pair[1])};
  });
}

template <typename T>
void Philox::FillNormal(uint64_t first, std::span<T> values) const {
  Fill(first, values, [this](uint64_t k) { return NormalsOf(PairOf(k)); });
}

template void Philox::FillUniform(uint64_t, std::span<float>) const;
template void Philox::FillUniform(uint64_t, std::span<double>) const;
template void Philox::FillNormal(uint64_t, std::span<float>) const;
template void Philox::FillNormal(uint64_t, std::span<double>) const;

}  // namespace tessera::tensor_parallel
