// F16, BF16, F8E4M3, F8E5M2: storage types of small floating-point formats, and
// their bit arithmetic for the host and the device.
//
//   F16 x(0.1f);                      // rounds to nearest, ties to even
//   F16 y(0.1);                       // from double: rounded once
//   float z = static_cast<float>(x);  // exact
//   F8E4M3 w = F8E4M3::Saturated(1e6f);  // 448
//
// There is no arithmetic: convert to float and back. The types are trivially
// copyable, of the size of their bits, usable in constant expressions and in
// CUDA device code. Conversions are branch-free, so that loops over them
// vectorise, and round once: a double goes to the small format directly. The
// floating-point environment must round to nearest; flushing of subnormals to
// zero (FTZ, DAZ) changes no result.
//
// Sources: IEEE 754-2019, sections 3.4, 4.3.1 and 6.2; OCP 8-bit Floating
// Point Specification (OFP8) 1.0, sections 5.1 and 5.2.
#ifndef TESSERA_BASE_DTYPE_SMALL_FLOAT_H_
#define TESSERA_BASE_DTYPE_SMALL_FLOAT_H_

#include <bit>
#include <compare>
#include <concepts>
#include <cstdint>
#include <ostream>
#include <type_traits>

// Marks a function that nvcc also compiles for the device; empty for any other
// compiler.
#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_HOST_DEVICE
#endif

namespace tessera {

// The result for a value that rounds past the largest finite one.
enum class FloatOverflow {
  kInfinityOrNan,  // Infinity; NaN in a format that has no infinity.
  kSaturate,       // The largest finite value, also for infinities.
};

// A format with a sign bit, `exponent_bits` and `mantissa_bits`; at most 16
// bits together. With infinities it is IEEE-like. Without them, as in the "fn"
// formats, the top exponent holds ordinary values, and all ones is the only
// NaN.
template <int exponent_bits, int mantissa_bits, bool has_infinity>
struct FloatFormat {
  static constexpr int kExponentBits = exponent_bits;
  static constexpr int kMantissaBits = mantissa_bits;
  static constexpr bool kHasInfinity = has_infinity;
  static constexpr int kBits = 1 + exponent_bits + mantissa_bits;
  static_assert(kBits == 8 || kBits == 16);
  using Bits = std::conditional_t<kBits == 8, uint8_t, uint16_t>;

  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int kMinExponent = 1 - kBias;  // of a normal value
  static constexpr int kSign = 1 << (kBits - 1);
  static constexpr int kMagnitude = kSign - 1;
  static constexpr int kMantissa = (1 << mantissa_bits) - 1;
  static constexpr int kMinNormal = 1 << mantissa_bits;
  // All exponent bits set: infinity, in a format that has one.
  static constexpr int kTopExponent = kMagnitude - kMantissa;
  static constexpr int kQuietNan =
      has_infinity ? kTopExponent | (1 << (mantissa_bits - 1)) : kMagnitude;
  static constexpr int kMaxFinite =
      has_infinity ? kTopExponent - 1 : kMagnitude - 1;
  static constexpr int kOverflow = has_infinity ? kTopExponent : kQuietNan;
};

namespace float_format_internal {

// The layout of the compiler's own float and double.
template <typename T>
struct Native;
template <>
struct Native<float> {
  using Int = int32_t;
  static constexpr int kBits = 32, kMantissaBits = 23, kBias = 127;
};
template <>
struct Native<double> {
  using Int = int64_t;
  static constexpr int kBits = 64, kMantissaBits = 52, kBias = 1023;
};

template <typename T>
inline constexpr typename Native<T>::Int kInfinityBits =
    typename Native<T>::Int{2 * Native<T>::kBias + 1}
    << Native<T>::kMantissaBits;

// Bits of 2^exponent.
template <typename T>
TESSERA_HOST_DEVICE constexpr typename Native<T>::Int PowerBits(int exponent) {
  return typename Native<T>::Int{Native<T>::kBias + exponent}
         << Native<T>::kMantissaBits;
}

// Mantissa bits that Format drops from Source. The functions below return a
// result whose bits are shifted up by this number, above undefined bits: the
// caller drops them without masking, and the compiler keeps vectors of one
// width.
template <typename Format, typename Source>
inline constexpr int kDropped =
    Native<Source>::kMantissaBits - Format::kMantissaBits;

// Rounds to nearest even in the grid of Format's normal values: half a unit
// less one bit, plus the kept part's lowest bit, carries exactly if rounding up
// is right. Undefined below the smallest normal value, and for a NaN.
template <typename Format, typename Source>
TESSERA_HOST_DEVICE constexpr typename Native<Source>::Int RoundNormal(
    typename Native<Source>::Int magnitude) {
  using UInt = std::make_unsigned_t<typename Native<Source>::Int>;
  constexpr int kShift = kDropped<Format, Source>;
  constexpr UInt kHalf = (UInt{1} << (kShift - 1)) - 1;
  constexpr UInt kRebias = UInt{Native<Source>::kBias - Format::kBias}
                           << Native<Source>::kMantissaBits;
  const UInt bits = static_cast<UInt>(magnitude);
  const UInt odd = (bits >> kShift) & 1;
  return static_cast<typename Native<Source>::Int>(bits + (kHalf - kRebias) +
                                                   odd);
}

// Rounds to nearest even in the grid of Format's subnormal values: adding a
// power of two whose unit in the last place is that grid's step leaves the
// multiple in the low bits. Undefined above the smallest normal value.
template <typename Format, typename Source>
TESSERA_HOST_DEVICE constexpr typename Native<Source>::Int RoundSubnormal(
    typename Native<Source>::Int magnitude) {
  using Int = typename Native<Source>::Int;
  using UInt = std::make_unsigned_t<Int>;
  constexpr Int kGrid =
      PowerBits<Source>(Format::kMinExponent - Format::kMantissaBits +
                        Native<Source>::kMantissaBits);
  const Source sum =
      std::bit_cast<Source>(magnitude) + std::bit_cast<Source>(kGrid);
  return static_cast<Int>(static_cast<UInt>(std::bit_cast<Int>(sum) - kGrid)
                          << kDropped<Format, Source>);
}

// The quiet NaN that keeps the payload's top bits.
template <typename Format, typename Source>
TESSERA_HOST_DEVICE constexpr typename Native<Source>::Int NarrowNan(
    typename Native<Source>::Int magnitude) {
  using Int = typename Native<Source>::Int;
  constexpr int kShift = kDropped<Format, Source>;
  return (Int{Format::kQuietNan} << kShift) |
         (magnitude & (Int{Format::kMantissa} << kShift));
}

// The double that rounds to any narrower format as `magnitude` itself does:
// exact up to 53 bits, rounded to odd above (Boldo and Melquiond, "Emulation of
// FMA and correctly rounded sums: proved algorithms using rounding to odd",
// 2008).
TESSERA_HOST_DEVICE constexpr double OddDouble(uint64_t magnitude) {
  constexpr uint64_t kDropped = (uint64_t{1} << 11) - 1;
  const uint64_t sticky = (magnitude & kDropped) != 0 ? kDropped + 1 : 0;
  const uint64_t odd = (magnitude & ~kDropped) | sticky;
  return static_cast<double>(magnitude >> 53 == 0 ? magnitude : odd);
}

}  // namespace float_format_internal

// `value` rounded to nearest, ties to even. `overflow` determines the result of
// infinities and overflow; a NaN stays a NaN, becomes quiet, and keeps its sign
// and the top bits of its payload if the format has any.
template <typename Format, FloatOverflow overflow, std::floating_point Source>
TESSERA_HOST_DEVICE constexpr typename Format::Bits EncodeFloat(Source value) {
  namespace internal = float_format_internal;
  using Native = internal::Native<Source>;
  using Int = typename Native::Int;
  constexpr int kShift = internal::kDropped<Format, Source>;
  constexpr Int kAtOverflow =
      Int{overflow == FloatOverflow::kSaturate ? Format::kMaxFinite
                                               : Format::kOverflow}
      << kShift;
  const Int bits = std::bit_cast<Int>(value);
  const Int magnitude = bits & ~(Int{1} << (Native::kBits - 1));

  Int result = internal::RoundNormal<Format, Source>(magnitude);
  result = result < kAtOverflow ? result : kAtOverflow;
  if constexpr (Format::kBias < Native::kBias) {
    const Int small = internal::RoundSubnormal<Format, Source>(magnitude);
    constexpr Int kMinNormal =
        internal::PowerBits<Source>(Format::kMinExponent);
    result = magnitude < kMinNormal ? small : result;
  }
  const Int nan = internal::NarrowNan<Format, Source>(magnitude);
  result = magnitude > internal::kInfinityBits<Source> ? nan : result;

  // The sign joins before the shift, so that one narrowing serves both.
  using UInt = std::make_unsigned_t<Int>;
  constexpr UInt kSign = UInt{Format::kSign} << kShift;
  const Int sign = bits >> (Native::kBits - Format::kBits - kShift);
  return static_cast<typename Format::Bits>(
      ((static_cast<UInt>(sign) & kSign) | static_cast<UInt>(result)) >>
      kShift);
}

// The same for an integer of up to 64 bits.
template <typename Format, FloatOverflow overflow, std::integral Source>
TESSERA_HOST_DEVICE constexpr typename Format::Bits EncodeFloat(Source value) {
  if constexpr (sizeof(Source) <= 4) {
    return EncodeFloat<Format, overflow>(static_cast<double>(value));
  } else {
    const bool negative = value < 0;
    const uint64_t bits = static_cast<uint64_t>(value);
    const double magnitude =
        float_format_internal::OddDouble(negative ? 0 - bits : bits);
    return EncodeFloat<Format, overflow>(negative ? -magnitude : magnitude);
  }
}

// The value of `bits`, exactly. A NaN becomes quiet and keeps its sign and its
// payload.
template <typename Format>
TESSERA_HOST_DEVICE constexpr float DecodeFloat(typename Format::Bits bits) {
  namespace internal = float_format_internal;
  using Native = internal::Native<float>;
  constexpr int kShift = Native::kMantissaBits - Format::kMantissaBits;
  constexpr int32_t kRebias = (Native::kBias - Format::kBias)
                              << Native::kMantissaBits;
  const int32_t sign = (bits & Format::kSign) != 0 ? INT32_MIN : 0;
  const int32_t magnitude = bits & Format::kMagnitude;

  int32_t result = (magnitude << kShift) + kRebias;
  if constexpr (Format::kBias < Native::kBias) {
    // One exponent up, the mantissa has an implicit one: subtract it.
    constexpr int32_t kOne = internal::PowerBits<float>(Format::kMinExponent);
    const float small = std::bit_cast<float>((magnitude << kShift) | kOne) -
                        std::bit_cast<float>(kOne);
    result =
        magnitude < Format::kMinNormal ? std::bit_cast<int32_t>(small) : result;
  }
  const int32_t special = internal::kInfinityBits<float> |
                          ((magnitude & Format::kMantissa) << kShift);
  if constexpr (Format::kHasInfinity) {
    result = magnitude >= Format::kTopExponent ? special : result;
  }
  constexpr int32_t kQuiet = 1 << (Native::kMantissaBits - 1);
  result = magnitude > Format::kMaxFinite && magnitude != Format::kTopExponent
               ? special | kQuiet
               : result;
  return std::bit_cast<float>(sign | result);
}

// float, double and the integers of up to 64 bits.
template <typename T>
concept SmallFloatSource = std::same_as<T, float> || std::same_as<T, double> ||
    (std::integral<T> && !std::same_as<T, bool> && sizeof(T) <= 8);

// A storage type over the bits of `FormatType`, a FloatFormat.
template <typename FormatType>
class SmallFloat {
 public:
  using Format = FormatType;
  using Bits = typename Format::Bits;

  // Like a float: SmallFloat() is zero; a variable without an initialiser is
  // uninitialised.
  SmallFloat() = default;

  // Rounds to nearest, ties to even. Overflow gives an infinity, or NaN if the
  // format has none.
  template <SmallFloatSource T>
  TESSERA_HOST_DEVICE explicit constexpr SmallFloat(T value)
      : bits_(EncodeFloat<Format, FloatOverflow::kInfinityOrNan>(value)) {}

  // Like the constructor, but overflow and infinities give the largest finite
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

// F16: IEEE 754 binary16, "half precision".
//
//   F16 x(0.1f);
//   float y = static_cast<float>(x);  // 0.09997559
//
// 5 exponent and 10 mantissa bits: 11 significant bits, largest value 65504,
// smallest normal 2^-14, smallest subnormal 2^-24. Values from 65520 on become
// infinities.
using F16 = SmallFloat<FloatFormat<5, 10, /*has_infinity=*/true>>;

// BF16: bfloat16, the upper half of an IEEE 754 binary32.
//
//   BF16 x(3.14159f);
//   float y = static_cast<float>(x);  // 3.140625
//
// 8 exponent and 7 mantissa bits: 8 significant bits over the range of float,
// subnormals included.
using BF16 = SmallFloat<FloatFormat<8, 7, /*has_infinity=*/true>>;

// F8E4M3 and F8E5M2: the two 8-bit floating-point formats of the Open Compute
// Project.
//
//   F8E4M3 weight = F8E4M3::Saturated(x / scale);
//   F8E5M2 gradient(y / scale);
//
// F8E4M3 is the "fn" format: no infinities, NaN is 0x7f and 0xff, largest value
// 448, smallest normal 2^-6, smallest subnormal 2^-9. The constructor rounds
// values past 464 to NaN (464 itself is a tie and goes to 448), as PyTorch's
// float8_e4m3fn does; Saturated() gives 448.
//
// F8E5M2 is IEEE-like, the upper byte of an F16: largest value 57344, smallest
// normal 2^-14, smallest subnormal 2^-16; values from 61440 on become
// infinities.
//
// Source: OFP8 1.0.
using F8E4M3 = SmallFloat<FloatFormat<4, 3, /*has_infinity=*/false>>;
using F8E5M2 = SmallFloat<FloatFormat<5, 2, /*has_infinity=*/true>>;

}  // namespace tessera

#endif  // TESSERA_BASE_DTYPE_SMALL_FLOAT_H_
