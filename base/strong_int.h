// StrongInt: a 64-bit integer that is not interchangeable with other integers.
//
//   using Rank = StrongInt<struct RankTag>;
//   Rank rank(3);
//   int64_t raw = rank.value();
//   Rank next = rank + 1;        // steps are plain integers
//   int64_t gap = next - rank;   // a difference is a plain integer
//   AxisSize size = rank;        // does not compile
//
// Has the size and the cost of an int64_t. Ordered, hashable with absl::Hash
// and printable.
#ifndef TESSERA_BASE_STRONG_INT_H_
#define TESSERA_BASE_STRONG_INT_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <utility>

namespace tessera {

template <typename Tag>
class StrongInt {
 public:
  constexpr StrongInt() = default;
  explicit constexpr StrongInt(int64_t value) : value_(value) {}

  constexpr int64_t value() const { return value_; }

  friend constexpr auto operator<=>(StrongInt, StrongInt) = default;

  friend constexpr StrongInt operator+(StrongInt a, int64_t step) {
    return StrongInt(a.value_ + step);
  }
  friend constexpr StrongInt operator-(StrongInt a, int64_t step) {
    return StrongInt(a.value_ - step);
  }
  friend constexpr int64_t operator-(StrongInt a, StrongInt b) {
    return a.value_ - b.value_;
  }
  constexpr StrongInt& operator++() {
    ++value_;
    return *this;
  }

  template <typename H>
  friend H AbslHashValue(H state, StrongInt a) {
    return H::combine(std::move(state), a.value_);
  }
  friend std::ostream& operator<<(std::ostream& os, StrongInt a) {
    return os << a.value_;
  }

 private:
  int64_t value_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_BASE_STRONG_INT_H_
