// Digits: some of the digits of a rank written in a mixed radix.
//
// A rank's offset in a mesh is a number whose digits are the coordinates. A
// Digits picks some of them: Gather reads the number they spell in an offset,
// Spread writes a number into them. An axis is one digit (or several, where it
// was put together from parts of others), a set of axes their union.
#ifndef TESSERA_TOPOLOGY_DIGITS_H_
#define TESSERA_TOPOLOGY_DIGITS_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"

namespace tessera::topology {

// The digit (offset / stride) % size.
struct Digit {
  int64_t stride = 1;
  int64_t size = 1;

  friend bool operator==(const Digit&, const Digit&) = default;
};

class Digits {
 public:
  Digits() = default;

  // The union of digits that do not overlap, in any order. Neighbours are
  // merged and digits of size 1 dropped: {1,2} and {2,4} become {1,8}.
  explicit Digits(std::span<const Digit> digits);

  // How many numbers the digits can spell: the product of their sizes.
  int64_t count() const { return count_; }

  // The number that the digits spell in `offset`, least stride first.
  int64_t Gather(int64_t offset) const {
    int64_t number = 0;
    int64_t weight = 1;
    for (const Digit& digit : digits_) {
      number += offset / digit.stride % digit.size * weight;
      weight *= digit.size;
    }
    return number;
  }

  // The offset in which the digits spell `number` and all others are 0.
  // Inverse of Gather for 0 <= number < count().
  int64_t Spread(int64_t number) const {
    int64_t offset = 0;
    for (const Digit& digit : digits_) {
      offset += number % digit.size * digit.stride;
      number /= digit.size;
    }
    return offset;
  }

  // Cuts the number that the digits spell into numbers of the given sizes, the
  // least significant first; the sizes must multiply to count().
  // InvalidArgument where a cut would fall inside a digit, since that part is
  // no digit of the offset.
  absl::StatusOr<std::vector<Digits>> Split(
      std::span<const int64_t> sizes) const;

  // Ascending by stride, none of size 1, no two that could be merged.
  std::span<const Digit> digits() const { return digits_; }

  friend Digits Union(const Digits& a, const Digits& b);

 private:
  absl::InlinedVector<Digit, 4> digits_;
  int64_t count_ = 1;
};

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DIGITS_H_
