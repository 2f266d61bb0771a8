// An independent reference for the small formats: the table of their finite
// values by the textbook formula, and rounding by search in that table.
//
//   FloatReference reference({.exponent_bits = 5, .mantissa_bits = 10,
//                             .has_infinity = true});
//   uint16_t bits = reference.Round(0.1);
//
// Slow and simple on purpose; shares nothing with
// base/dtype/small_float.h.
#ifndef TESSERA_BASE_TESTING_FLOAT_REFERENCE_H_
#define TESSERA_BASE_TESTING_FLOAT_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

class FloatReference {
 public:
  struct Layout {
    int exponent_bits;
    int mantissa_bits;
    bool has_infinity;
  };

  explicit FloatReference(Layout layout) : layout_(layout) {
    const int last_exponent =
        (1 << layout.exponent_bits) - (layout.has_infinity ? 2 : 1);
    const int per_exponent = 1 << layout.mantissa_bits;
    for (int e = 0; e <= last_exponent; ++e) {
      for (int m = 0; m < per_exponent; ++m) values_.push_back(Value(e, m));
    }
    // Overflow rounds as if one more finite value followed: the last pattern of
    // an "fn" format, which is NaN, or, with infinities, the start of another
    // binade.
    if (layout.has_infinity) values_.push_back(Value(last_exponent + 1, 0));
  }

  // values()[i] is the value of bit pattern i; the last one is not finite in
  // the format and stands for overflow.
  const std::vector<double>& values() const { return values_; }
  int overflow_bits() const { return static_cast<int>(values_.size()) - 1; }
  int sign_bit() const {
    return 1 << (layout_.exponent_bits + layout_.mantissa_bits);
  }

  // Nearest, ties to the even pattern. `value` must not be NaN. Overflow gives
  // overflow_bits(): the infinity, or the NaN of a format without one.
  int Round(double value) const {
    const double x = std::fabs(value);
    return (std::signbit(value) ? sign_bit() : 0) | RoundMagnitude(x);
  }

 private:
  double Value(int e, int m) const {
    const int bias = (1 << (layout_.exponent_bits - 1)) - 1;
    const int significand = e == 0 ? m : m + (1 << layout_.mantissa_bits);
    return std::ldexp(significand,
                      std::max(e, 1) - bias - layout_.mantissa_bits);
  }

  int RoundMagnitude(double x) const {
    const auto above = std::upper_bound(values_.begin(), values_.end(), x);
    if (above == values_.end()) return overflow_bits();
    const int high = static_cast<int>(above - values_.begin());
    const int low = high - 1;
    // Exact: both have far fewer bits than a double.
    const double middle = (values_[static_cast<size_t>(low)] + *above) / 2;
    if (x != middle) return x < middle ? low : high;
    return low % 2 == 0 ? low : high;
  }

  Layout layout_;
  std::vector<double> values_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_TESTING_FLOAT_REFERENCE_H_
