#include "tensor_parallel/random/philox.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace tessera::tensor_parallel {
namespace {

// The constants of the paper: multipliers, and the steps of the key (the golden
// ratio and the square root of 3, less 1).
constexpr uint64_t kMultiplier0 = 0xD2511F53;
constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kKeyStep0 = 0x9E3779B9;
constexpr uint32_t kKeyStep1 = 0xBB67AE85;
constexpr int kRounds = 10;

uint32_t High(uint64_t product) { return static_cast<uint32_t>(product >> 32); }
uint32_t Low(uint64_t product) { return static_cast<uint32_t>(product); }

double UniformOf(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Both numbers of a pair. The logarithm's argument is in (0, 1].
std::array<double, 2> NormalsOf(const std::array<uint64_t, 2>& pair) {
  const double radius = std::sqrt(-2 * std::log(1 - UniformOf(pair[0])));
  const double angle = 2 * std::numbers::pi * UniformOf(pair[1]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

std::array<double, 2> UniformsOf(const std::array<uint64_t, 2>& pair) {
  return {UniformOf(pair[0]), UniformOf(pair[1])};
}

// values[i] = the number of index first + i; `two_of(k)` returns those of 2k
// and 2k + 1.
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

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {High(product1) ^ counter[1] ^ key[0], Low(product1),
               High(product0) ^ counter[3] ^ key[1], Low(product0)};
    key[0] += kKeyStep0;
    key[1] += kKeyStep1;
  }
  return counter;
}

// The pair's number and the stream are the counter, the seed is the key.
std::array<uint64_t, 2> Philox::PairOf(uint64_t pair) const {
  const std::array<uint32_t, 4> words =
      Philox4x32({Low(pair), High(pair), Low(key_.stream), High(key_.stream)},
                 {Low(key_.seed), High(key_.seed)});
  return {uint64_t{words[1]} << 32 | words[0],
          uint64_t{words[3]} << 32 | words[2]};
}

uint64_t Philox::Bits(uint64_t index) const {
  return PairOf(index / 2)[index % 2];
}

double Philox::Uniform(uint64_t index) const { return UniformOf(Bits(index)); }

double Philox::Normal(uint64_t index) const {
  return NormalsOf(PairOf(index / 2))[index % 2];
}

template <typename T>
void Philox::FillUniform(uint64_t first, std::span<T> values) const {
  Fill(first, values, [this](uint64_t k) { return UniformsOf(PairOf(k)); });
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
