// Small arithmetic of many modules: division and rounding upwards, the median.
//
//   CeilDiv(int64_t{9}, 4);     // 3
//   RoundUp(size_t{65}, 64);    // 128
//   Median({1, 2, 3, 4});       // 2.5
#ifndef TESSERA_BASE_ARITHMETIC_H_
#define TESSERA_BASE_ARITHMETIC_H_

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <vector>

namespace tessera {

// a / b rounded up, for a >= 0 and b > 0. Does not overflow.
template <std::integral T>
constexpr T CeilDiv(T a, std::type_identity_t<T> b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

// The least multiple of `unit` that is at least `value`; as CeilDiv.
template <std::integral T>
constexpr T RoundUp(T value, std::type_identity_t<T> unit) {
  return CeilDiv(value, unit) * unit;
}

// The median; for an even number of values the mean of the two in the middle,
// and 0 without values.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t count = values.size();
  return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

}  // namespace tessera

#endif  // TESSERA_BASE_ARITHMETIC_H_
