// DynamicMap: the 256 values of 8-bit moments, in [-1, 1] or [0, 1], which are
// scaled by the largest magnitude of their block.
//
//   double m = DynamicMap<true>::Value(code) * largest;
//
// The dynamic quantisation data type ("dynamic tree") of block-wise 8-bit
// optimizers: seven decades from 1e-7 to 1, each divided into equal steps,
// twice as many as in the decade below; a value is the midpoint of its step.
// Codes are numbered in ascending order, as in bitsandbytes, so that each can
// read the other's states (values agree within a relative 2^-22).
//
// |                       | signed (first moment) | unsigned (second)         |
// | --------------------- | --------------------- | ------------------------- |
// | steps in decade i     | 2^i, each sign        | 2^(i+1)                   |
// | code of 0, code of 1  | 127, 255              | 0, 255                    |
// | -1                    | code 0, -0.99297      | none                      |
// | smallest above 0      | 5.5e-7                | 3.25e-7                   |
// | error / block maximum | at most .0070         | at most .0035             |
//
// Source: T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer, "8-bit Optimizers
// via Block-wise Quantization", arXiv 2110.02861, sections 1.3 and 2.2.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_DYNAMIC_MAP_H_
#define TESSERA_OFFLOAD_OPTIMIZER_DYNAMIC_MAP_H_

#include <array>
#include <cstddef>

namespace tessera::offload {

template <bool kSigned>
class DynamicMap {
 public:
  static constexpr int kDecades = 7;

  // A rank numbers the magnitudes in ascending order: kZeroRank for zero, then
  // the steps, with those of decade i from Steps(i) on, then Steps(7) for 1.
  static constexpr int kZeroRank = kSigned ? 0 : 1;
  static constexpr int Steps(int decade) {
    return 1 << (decade + (kSigned ? 0 : 1));
  }
  static constexpr int kOneRank = Steps(kDecades);
  // The code of zero. The code of a magnitude is kZeroCode plus the distance of
  // its rank from kZeroRank.
  static constexpr int kZeroCode = kSigned ? 127 : 0;

  // A value is First(i) + Span(i) * t, where the rank is (1 + t) 2^k, t < 1.
  static constexpr float First(int decade) {
    if (decade == kDecades) return 1.0f;
    return static_cast<float>(Top(decade) * (0.1 + 0.45 / Steps(decade)));
  }
  static constexpr float Span(int decade) {
    return decade == kDecades ? 0.0f : static_cast<float>(Top(decade) * 0.9);
  }

  static constexpr float ValueOfRank(int rank) {
    if (rank == kZeroRank) return 0.0f;
    int decade = 0;
    while (Steps(decade + 1) <= rank) ++decade;
    const float t = static_cast<float>(rank - Steps(decade)) /
                    static_cast<float>(Steps(decade));
    return First(decade) + Span(decade) * t;
  }
  static constexpr float Value(int code) {
    const int distance = code - kZeroCode;
    return distance < 0 ? -ValueOfRank(-distance)
                        : ValueOfRank(distance + kZeroRank);
  }
  static constexpr std::array<float, 256> Values() {
    std::array<float, 256> values = {};
    for (int code = 0; code < 256; ++code) {
      values[static_cast<size_t>(code)] = Value(code);
    }
    return values;
  }

  // Encoding. Magnitudes from Threshold(i) on belong to decade i, or are 1 if i
  // is 7. The threshold is half-way between the values on both sides (for
  // decade 0: the smallest value and zero).
  static constexpr float Threshold(int decade) {
    if (decade == 0) return First(0) / 2;
    const double below = Top(decade - 1) * (1 - 0.45 / Steps(decade - 1));
    const double above =
        decade == kDecades ? 1.0 : Top(decade) * (0.1 + 0.45 / Steps(decade));
    return static_cast<float>((below + above) / 2);
  }
  // In decade i a magnitude x has the rank nearest to x * Slope(i) +
  // Steps(i) * 8/9 - 1/2.
  static constexpr float Slope(int decade) {
    return static_cast<float>(Steps(decade) / (Top(decade) * 0.9));
  }
  // The decade of 2^exponent, for -22 <= exponent <= 0: no binade has more than
  // one threshold above its lower end. log10(2) is near 5/16.
  static constexpr int kExponentOffset = kSigned ? 112 : 113;
  static constexpr int DecadeOfPower(int exponent) {
    return (exponent * 5 + kExponentOffset) >> 4;
  }

 private:
  // The upper end of a decade.
  static constexpr double Top(int decade) {
    double top = 1;
    for (int i = decade; i < kDecades - 1; ++i) top /= 10;
    return top;
  }
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_DYNAMIC_MAP_H_
