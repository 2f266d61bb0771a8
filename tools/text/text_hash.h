// 64-bit hashes that are the same on every machine: Scramble for integers,
// TextHash for texts. They detect accidental changes, not attacks.
//
//   TextHash hash;
//   hash.Add("first ");
//   hash.Add("second");
//   hash.value();  // The hash of "first second", however it is split.
#ifndef TESSERA_TOOLS_TEXT_TEXT_HASH_H_
#define TESSERA_TOOLS_TEXT_TEXT_HASH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

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

// The hash of a text that is added in parts.
class TextHash {
 public:
  void Add(std::string_view text) {
    size_ += text.size();
    while (!text.empty()) {
      const size_t count = std::min(text.size(), sizeof(word_) - filled_);
      std::memcpy(reinterpret_cast<char*>(&word_) + filled_, text.data(),
                  count);
      text.remove_prefix(count);
      filled_ = (filled_ + count) % sizeof(word_);
      if (filled_ > 0) return;
      hash_ = Scramble(hash_ ^ word_);
      word_ = 0;
    }
  }

  uint64_t value() const { return Scramble(Scramble(hash_ ^ word_) ^ size_); }

 private:
  uint64_t hash_ = 0;
  uint64_t word_ = 0;  // The bytes of an incomplete word, then zeros.
  size_t filled_ = 0;  // Their number.
  uint64_t size_ = 0;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TEXT_HASH_H_
