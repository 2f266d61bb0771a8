// SmallFloat: a storage type over the bits of a small floating-point format.
//
//   F16 x(0.1f);                      // rounds to nearest, ties to even
//   F16 y(0.1);                       // from double: rounded once
//   float z = static_cast<float>(x);  // exact
//   F8E4M3 w = F8E4M3::Saturated(1e6f);  // 448
//
// Users name F16, BF16, F8E4M3 and F8E5M2 (base/dtype/float16.h and its
// neighbours). There is no arithmetic: convert to float and back. Trivially
// copyable, of the size of its bits, usable in constant expressions and in CUDA
// device code.
#ifndef TESSERA_BASE_DTYPE_SMALL_FLOAT_H_
#define TESSERA_BASE_DTYPE_SMALL_FLOAT_H_

#include <compare>
#include <concepts>
#include <ostream>
#include <type_traits>

#include "base/dtype/float_format.h"
#include "base/dtype/host_device.h"

namespace tessera {

// float, double and the integers of up to 64 bits.
template <typename T>
concept SmallFloatSource = std::same_as<T, float> || std::same_as<T, double> ||
    (std::integral<T> && !std::same_as<T, bool> && sizeof(T) <= 8);

// `FormatType` is a FloatFormat.
template <typename FormatType>
class SmallFloat {
 public:
  using Format = FormatType;
  using Bits = typename Format::Bits;

  // As a float: SmallFloat() is zero, a variable without initialiser is not
  // set.
  SmallFloat() = default;

  // Rounds to nearest, ties to even. Overflow gives an infinity, or NaN where
  // the format has none.
  template <SmallFloatSource T>
  TESSERA_HOST_DEVICE explicit constexpr SmallFloat(T value)
      : bits_(EncodeFloat<Format, FloatOverflow::kInfinityOrNan>(value)) {}

  // As the constructor, but overflow and infinities give the largest finite
  // value of their sign. NaN stays NaN.
  template <SmallFloatSource T>
  TESSERA_HOST_DEVICE static constexpr SmallFloat Saturated(T value) {
    return FromBits(EncodeFloat<Format, FloatOverflow::kSaturate>(value));
  }

  TESSERA_HOST_DEVICE static constexpr SmallFloat FromBits(Bits bits) {
    SmallFloat result{};
    result.bits_ = bits;
    return result;
  }
  TESSERA_HOST_DEVICE constexpr Bits bits() const { return bits_; }

  TESSERA_HOST_DEVICE explicit constexpr operator float() const {
    return DecodeFloat<Format>(bits_);
  }
  TESSERA_HOST_DEVICE explicit constexpr operator double() const {
    return DecodeFloat<Format>(bits_);
  }

  static constexpr SmallFloat Max() { return FromBits(Format::kMaxFinite); }
  static constexpr SmallFloat MinNormal() {
    return FromBits(Format::kMinNormal);
  }
  static constexpr SmallFloat MinSubnormal() { return FromBits(1); }
  static constexpr SmallFloat QuietNan() { return FromBits(Format::kQuietNan); }
  static constexpr SmallFloat Infinity() requires(Format::kHasInfinity) {
    return FromBits(Format::kTopExponent);
  }

  constexpr bool IsNan() const {
    return Magnitude() > Format::kMaxFinite && !IsInfinite();
  }
  constexpr bool IsInfinite() const {
    return Format::kHasInfinity && Magnitude() == Format::kTopExponent;
  }
  constexpr bool IsFinite() const { return Magnitude() <= Format::kMaxFinite; }
  constexpr bool SignBit() const { return (bits_ & Format::kSign) != 0; }

  constexpr SmallFloat operator-() const {
    return FromBits(static_cast<Bits>(bits_ ^ Format::kSign));
  }

  // By value: -0 equals 0, NaN equals nothing.
  friend constexpr bool operator==(SmallFloat a, SmallFloat b) {
    return static_cast<float>(a) == static_cast<float>(b);
  }
  friend constexpr std::partial_ordering operator<=>(SmallFloat a,
                                                     SmallFloat b) {
    return static_cast<float>(a) <=> static_cast<float>(b);
  }

  friend std::ostream& operator<<(std::ostream& os, SmallFloat value) {
    return os << static_cast<float>(value);
  }

 private:
  constexpr int Magnitude() const { return bits_ & Format::kMagnitude; }

  Bits bits_;
};

template <typename T>
inline constexpr bool kIsSmallFloat = false;
template <typename Format>
inline constexpr bool kIsSmallFloat<SmallFloat<Format>> = true;

}  // namespace tessera

#endif  // TESSERA_BASE_DTYPE_SMALL_FLOAT_H_
