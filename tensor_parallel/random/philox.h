// Philox: random numbers that are a function of a key and an index, with no
// state, so that every rank can compute the numbers of its own shard and all
// meshes start from the same weights.
#ifndef TESSERA_TENSOR_PARALLEL_RANDOM_PHILOX_H_
#define TESSERA_TENSOR_PARALLEL_RANDOM_PHILOX_H_

#include <array>
#include <cstdint>
#include <span>

namespace tessera::tensor_parallel {

// One application of the ten rounds: 128 bits of counter under 64 bits of key.
// The constants are the paper's: multipliers, and the steps of the key (the
// golden ratio and the square root of 3, less 1).
constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Identifies a sequence of random numbers: `stream` distinguishes the tensors
// of a model, the dropout layers and the steps.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;

  friend bool operator==(const RandomKey&, const RandomKey&) = default;
};

// Example:
//
//   const Philox random({.seed = 42, .stream = 7});
//   random.Bits(i);           // 64 random bits
//   random.Uniform(i);        // in [0, 1), 53 bits
//   random.Normal(i);         // of mean 0 and variance 1
//
// The generator is Philox4x32-10: Salmon, Moraes, Dror and Shaw, Parallel
// Random Numbers: As Easy as 1, 2, 3 (SC 2011), section 4.3. It passes Crush.
// Numbers of different seeds, streams or indices are independent. The
// neighbours 2k and 2k + 1 share one evaluation, which the Fill functions
// exploit.
class Philox {
 public:
  constexpr explicit Philox(const RandomKey& key) : key_(key) {}

  constexpr uint64_t Bits(uint64_t index) const {
    const auto pair = PairOf(index / 2);
    // Not an index, which would put the pair into memory on a GPU.
    return index % 2 == 0 ? pair[0] : pair[1];
  }

  // A multiple of 2^-53.
  constexpr double Uniform(uint64_t index) const {
    return UniformOf(Bits(index));
  }

  // Computed by the method of Box and Muller (Annals of Mathematical Statistics
  // 29, 1958) from the uniform numbers of the pair. The magnitude is at most
  // 8.6. The bits depend on the logarithm and sine of the C library.
  double Normal(uint64_t index) const;

  // values[i] is the number of index `first` + i, rounded to T from float64 (so
  // that a uniform float may be 1). T is float or double.
  template <typename T>
  void FillUniform(uint64_t first, std::span<T> values) const;
  template <typename T>
  void FillNormal(uint64_t first, std::span<T> values) const;

 private:
  static constexpr double UniformOf(uint64_t bits) {
    return static_cast<double>(bits >> 11) * 0x1p-53;
  }

  // The numbers with indices 2 * `pair` and 2 * `pair` + 1. `pair` and the
  // stream are the counter, the seed is the key.
  constexpr std::array<uint64_t, 2> PairOf(uint64_t pair) const {
    const std::array<uint32_t, 4> words =
        Philox4x32({Low(pair), High(pair), Low(key_.stream), High(key_.stream)},
                   {Low(key_.seed), High(key_.seed)});
    return {uint64_t{words[1]} << 32 | words[0],
            uint64_t{words[3]} << 32 | words[2]};
  }
  static constexpr uint32_t High(uint64_t word) {
    return static_cast<uint32_t>(word >> 32);
  }
  static constexpr uint32_t Low(uint64_t word) {
    return static_cast<uint32_t>(word);
  }
  // Both normal numbers of a pair.
  static std::array<double, 2> NormalsOf(const std::array<uint64_t, 2>& pair);

  RandomKey key_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_RANDOM_PHILOX_H_
