// ConvertValue: converts one element from any element type to any other, on the
// host and the device.
//
//   BF16 x = ConvertValue<BF16>(0.1);
//   int8_t y = ConvertValue<int8_t>(300.7f);  // 127
//
// | from -> to         | result                                             |
// | ------------------ | -------------------------------------------------- |
// | same type          | the same bits                                      |
// | float -> float     | nearest, ties to even, rounded once; overflow as   |
// |                    | `overflow` says; NaN stays NaN, quiet, sign kept   |
// | integer -> float   | nearest, ties to even, rounded once                |
// | float -> integer   | toward zero; saturates at both ends; NaN gives 0   |
// | integer -> integer | saturates at both ends                             |
//
// A wider float holds every value of a narrower one, so widening never
// overflows, and infinities stay infinite under either `overflow`. No input has
// undefined behaviour, and the host and the device give the same bits.
#ifndef TESSERA_BASE_DTYPE_CONVERT_VALUE_H_
#define TESSERA_BASE_DTYPE_CONVERT_VALUE_H_

#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/dtype/small_float.h"

namespace tessera {
namespace convert_value_internal {

using float_format_internal::kInfinityBits;
using float_format_internal::Native;

// The quiet NaN with the sign and payload of `nan`, by bit operations, because
// devices and processors convert NaNs differently.
TESSERA_HOST_DEVICE constexpr double WidenNan(float nan) {
  const uint64_t bits = std::bit_cast<uint32_t>(nan);
  constexpr uint64_t kQuiet = uint64_t{0x7ff8} << 48;
  return std::bit_cast<double>(((bits >> 31) << 63) | kQuiet |
                               ((bits & 0x7fffff) << 29));
}
TESSERA_HOST_DEVICE constexpr float NarrowNan(double nan) {
  const uint64_t bits = std::bit_cast<uint64_t>(nan);
  constexpr uint64_t kQuiet = 0x7fc00000;
  return std::bit_cast<float>(static_cast<uint32_t>(
      ((bits >> 63) << 31) | kQuiet | ((bits >> 29) & 0x7fffff)));
}

template <FloatOverflow overflow>
TESSERA_HOST_DEVICE constexpr float Narrow(double value) {
  float result = static_cast<float>(value);
  if constexpr (overflow == FloatOverflow::kSaturate) {
    constexpr float kMax = std::numeric_limits<float>::max();
    result = result > kMax ? kMax : result;
    result = result < -kMax ? -kMax : result;
  }
  return value != value ? NarrowNan(value) : result;
}

TESSERA_HOST_DEVICE constexpr double Widen(float value) {
  const double result = value;
  return value != value ? WidenNan(value) : result;
}

template <std::integral To, std::floating_point From>
TESSERA_HOST_DEVICE constexpr To Truncate(From value) {
  constexpr To kMin = std::numeric_limits<To>::min();
  constexpr To kMax = std::numeric_limits<To>::max();
  // Both are powers of two or zero, and so exact.
  constexpr From kLow = static_cast<From>(kMin);
  constexpr From kPastHigh = static_cast<From>(kMax / 2 + 1) * 2;
  const bool is_low = value < kLow;
  const bool is_high = value >= kPastHigh;
  const bool is_inside = value >= kLow && !is_high;
  const To inside = static_cast<To>(is_inside ? value : From{0});
  return is_high ? kMax : (is_low ? kMin : inside);
}

template <std::integral To, std::integral From>
TESSERA_HOST_DEVICE constexpr To Clamp(From value) {
  constexpr To kMin = std::numeric_limits<To>::min();
  constexpr To kMax = std::numeric_limits<To>::max();
  if (std::cmp_less(value, kMin)) return kMin;
  if (std::cmp_greater(value, kMax)) return kMax;
  return static_cast<To>(value);
}

}  // namespace convert_value_internal

template <typename To, FloatOverflow overflow = FloatOverflow::kInfinityOrNan,
          typename From>
TESSERA_HOST_DEVICE constexpr To ConvertValue(From value) {
  namespace internal = convert_value_internal;
  if constexpr (std::same_as<From, To>) {
    return value;
  } else if constexpr (kIsSmallFloat<From>) {
    return ConvertValue<To, overflow>(static_cast<float>(value));
  } else if constexpr (kIsSmallFloat<To>) {
    return To::FromBits(EncodeFloat<typename To::Format, overflow>(value));
  } else if constexpr (std::same_as<To, float> && std::same_as<From, double>) {
    return internal::Narrow<overflow>(value);
  } else if constexpr (std::same_as<To, double> && std::same_as<From, float>) {
    return internal::Widen(value);
  } else if constexpr (std::floating_point<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::floating_point<From>) {
    return internal::Truncate<To>(value);
  } else {
    return internal::Clamp<To>(value);
  }
}

}  // namespace tessera

#endif  // TESSERA_BASE_DTYPE_CONVERT_VALUE_H_
