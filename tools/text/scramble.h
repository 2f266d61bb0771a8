// Scramble: numbers that look random from numbers that do not.
#ifndef TESSERA_TOOLS_TEXT_SCRAMBLE_H_
#define TESSERA_TOOLS_TEXT_SCRAMBLE_H_

#include <cstdint>

namespace tessera::text {

// The finaliser of SplitMix64: each bit of the result depends on all of `x`.
// Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number
// Generators, OOPSLA 2014.
constexpr uint64_t Scramble(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_SCRAMBLE_H_
