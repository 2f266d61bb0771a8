// Philox: random numbers that are a function of a key and an index, with no
// state, so that every rank can compute the numbers of its own shard and all
// meshes start from the same weights.
//
//   const Philox random({.seed = 42, .stream = 7});
//   random.Bits(i);           // 64 random bits
//   random.Uniform(i);        // in [0, 1), 53 bits
//   random.Normal(i);         // of mean 0 and variance 1
//
// The generator is Philox4x32-10: Salmon, Moraes, Dror and Shaw, Parallel
// Random Numbers: As Easy as 1, 2, 3 (SC 2011), section 4.3. It passes Crush.
// Numbers of different seeds, streams or indices are independent. Two
// neighbours, 2k and 2k + 1, share one evaluation: the functions that fill
// memory make use of it.
#ifndef TESSERA_TENSOR_PARALLEL_RANDOM_PHILOX_H_
#define TESSERA_TENSOR_PARALLEL_RANDOM_PHILOX_H_

#include <array>
#include <cstdint>
#include <span>

namespace tessera::tensor_parallel {

// One application of the ten rounds: 128 bits of counter under 64 bits of key.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key);

// Identifies a sequence of random numbers: `stream` distinguishes the tensors
// of a model, the dropout layers and the steps.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;

  friend bool operator==(const RandomKey&, const RandomKey&) = default;
};

class Philox {
 public:
  explicit Philox(const RandomKey& key) : key_(key) {}

  uint64_t Bits(uint64_t index) const;

  // A multiple of 2^-53.
  double Uniform(uint64_t index) const;

  // By Box and Muller (Annals of Mathematical Statistics 29, 1958) from the
  // uniform numbers of the pair: within 8.6 of 0. As exact as the C library's
  // logarithm and sine, so equal where that is the same.
  double Normal(uint64_t index) const;

  // values[i] is the number of index `first` + i, rounded to T from float64 (so
  // that a uniform float may be 1). T is float or double.
  template <typename T>
  void FillUniform(uint64_t first, std::span<T> values) const;
  template <typename T>
  void FillNormal(uint64_t first, std::span<T> values) const;

 private:
  // The numbers with indices 2 * `pair` and 2 * `pair` + 1.
  std::array<uint64_t, 2> PairOf(uint64_t pair) const;

  RandomKey key_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_RANDOM_PHILOX_H_
