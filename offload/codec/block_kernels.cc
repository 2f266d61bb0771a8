#include "offload/codec/block_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/codec/block_kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::offload {

namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The inverse of a scale below 2^-126 overflows. Values and scale of a block
// with a small scale are therefore multiplied by a power of two first, which is
// exact.

// Returns 1, or 2^64 for a small scale that is not 0.
HWY_INLINE float LiftOf(float scale) {
  return scale != 0 && scale < 0x1p-64f ? 0x1p64f : 1.0f;
}

// value * lift * inverse is about value * top / scale; 0 for a scale of 0.
struct Reciprocal {
  float lift;
  float inverse;
};
HWY_INLINE Reciprocal ReciprocalOf(float scale, float top) {
  const float lift = LiftOf(scale);
  return {lift, scale == 0 ? 0.0f : top / (scale * lift)};
}

// The smallest float near top / steps whose product with `steps` is at least
// `top`. `top` is finite, and 0 or normal.
HWY_INLINE float StepReaching(float top, float steps) {
  const float step = top / steps;
  return step * steps < top
             ? std::bit_cast<float>(std::bit_cast<uint32_t>(step) + 1)
             : step;
}

using LevelTag = hn::ScalableTag<float>;
using CodeTag = hn::RebindToSigned<LevelTag>;
using LevelVec = hn::Vec<LevelTag>;
using CodeVec = hn::Vec<CodeTag>;
inline constexpr size_t kLevelLanes = hn::MaxLanes(LevelTag());

// Table lookup by shuffle needs a vector as wide as the table.
inline constexpr bool kShufflesTables = kLevelLanes >= 8;

// Repeats the eight floats of `table` over the vector.
HWY_INLINE LevelVec LoadEight(const std::array<float, 8>& table) {
  HWY_ALIGN float lanes[kLevelLanes];
  for (size_t i = 0; i < kLevelLanes; ++i) lanes[i] = table[i % 8];
  return hn::Load(LevelTag(), lanes);
}
HWY_INLINE LevelVec Shuffle(LevelVec table, CodeVec index) {
  const LevelTag d;
  return hn::TableLookupLanes(table, hn::IndicesFromVec(d, index));
}

// Counts how many of the 15 thresholds between the levels are below a value: by
// binary search if shuffles can look up the next threshold, otherwise one by
// one.
class Nf4Search {
 public:
  HWY_INLINE Nf4Search() {
    constexpr auto& t = kNf4Thresholds;
    third_ = LoadEight({t[1], t[5], t[9], t[13], t[1], t[5], t[9], t[13]});
    fourth_ = LoadEight({t[0], t[2], t[4], t[6], t[8], t[10], t[12], t[14]});
  }

  HWY_INLINE CodeVec Nearest(LevelVec v) const {
    const LevelTag d;
    constexpr auto& t = kNf4Thresholds;
    if constexpr (kShufflesTables) {
      const auto upper = hn::Gt(v, hn::Set(d, t[7]));
      const CodeVec one = hn::Sub(hn::Zero(CodeTag()), Ones(upper));
      const CodeVec two = Next(
          one, v, hn::IfThenElse(upper, hn::Set(d, t[11]), hn::Set(d, t[3])));
      const CodeVec three = Next(two, v, Shuffle(third_, two));
      return Next(three, v, Shuffle(fourth_, three));
    } else {
      CodeVec count = hn::Zero(CodeTag());
      for (const float threshold : t) {
        count = hn::Sub(count, Ones(hn::Gt(v, hn::Set(d, threshold))));
      }
      return count;
    }
  }

 private:
  // -1 in the lanes of the mask, otherwise 0.
  static HWY_INLINE CodeVec Ones(hn::Mask<LevelTag> mask) {
    return hn::BitCast(CodeTag(), hn::VecFromMask(LevelTag(), mask));
  }
  static HWY_INLINE CodeVec Next(CodeVec code, LevelVec v, LevelVec threshold) {
    return hn::Sub(hn::Add(code, code), Ones(hn::Gt(v, threshold)));
  }

  LevelVec third_;
  LevelVec fourth_;
};

// The levels times a scale.
class Nf4Table {
 public:
  HWY_INLINE explicit Nf4Table(float scale) {
    if constexpr (kShufflesTables) {
      const LevelTag d;
      const LevelVec factor = hn::Set(d, scale);
      if constexpr (kLevelLanes == 16) {
        low_ = hn::Mul(hn::LoadU(d, kNf4Levels.data()), factor);
      } else {
        low_ = hn::Mul(hn::LoadU(d, kNf4Levels.data()), factor);
        high_ = hn::Mul(hn::LoadU(d, kNf4Levels.data() + 8), factor);
      }
    } else {
      for (size_t i = 0; i < 16; ++i) values_[i] = kNf4Levels[i] * scale;
    }
  }

  HWY_INLINE LevelVec At(CodeVec code) const {
    const LevelTag d;
    const CodeTag di;
    if constexpr (kLevelLanes == 16) {
      return Shuffle(low_, code);
    } else if constexpr (kShufflesTables) {
      const CodeVec in_half = hn::And(code, hn::Set(di, 7));
      const auto upper = hn::RebindMask(d, hn::Gt(code, hn::Set(di, 7)));
      return hn::IfThenElse(upper, Shuffle(high_, in_half),
                            Shuffle(low_, in_half));
    } else {
      HWY_ALIGN int32_t codes[kLevelLanes];
      HWY_ALIGN float lanes[kLevelLanes];
      hn::Store(code, di, codes);
      for (size_t i = 0; i < kLevelLanes; ++i) {
        lanes[i] = values_[static_cast<size_t>(codes[i])];
      }
      return hn::Load(d, lanes);
    }
  }

 private:
  LevelVec low_;
  LevelVec high_;
  std::array<float, 16> values_;
};

// The bit patterns of magnitudes, as integers, have the order of the
// magnitudes, with infinity and then NaN above them. So an integer maximum is
// exact in any order.
void LargestOfBlocks(const float* values, size_t blocks, size_t block,
                     float* largest) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  for (size_t b = 0; b < blocks; ++b) {
    const float* const from = values + b * block;
    auto m0 = hn::Zero(di), m1 = hn::Zero(di);
    for (size_t i = 0; i < block; i += 2 * lanes) {
      const auto v0 = hn::LoadU(d, from + i);
      const auto v1 = hn::LoadU(d, from + i + lanes);
      m0 = hn::Max(m0, hn::BitCast(di, hn::Abs(v0)));
      m1 = hn::Max(m1, hn::BitCast(di, hn::Abs(v1)));
    }
    const int32_t bits = hn::GetLane(hn::MaxOfLanes(di, hn::Max(m0, m1)));
    largest[b] = std::bit_cast<float>(bits);
  }
}

void Int8FromFloats(const float* values, size_t blocks, const float* scales,
                    int8_t* codes) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  // Adding this to a small float leaves the nearest integer in the low bits.
  const auto magic = hn::Set(d, 0x1.8p23f);
  for (size_t b = 0; b < blocks; ++b) {
    const Reciprocal factors = ReciprocalOf(scales[b], 127.0f);
    const auto lift = hn::Set(d, factors.lift);
    const auto inverse = hn::Set(d, factors.inverse);
    for (size_t i = b * kInt8Block; i < (b + 1) * kInt8Block; i += lanes) {
      const auto v = hn::Mul(hn::Mul(hn::LoadU(d, values + i), lift), inverse);
      const auto code =
          hn::Sub(hn::BitCast(di, hn::Add(v, magic)), hn::BitCast(di, magic));
      hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
    }
  }
}

void FloatsFromInt8(const int8_t* codes, size_t blocks, const float* scales,
                    float* values) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  for (size_t b = 0; b < blocks; ++b) {
    const float lift = LiftOf(scales[b]);
    const float top = scales[b] * lift;
    const auto high = hn::Set(d, top);
    const auto low = hn::Set(d, 0.0f - top);
    const auto step = hn::Set(d, StepReaching(top, 127.0f));
    const auto drop = hn::Set(d, 1.0f / lift);
    for (size_t i = b * kInt8Block; i < (b + 1) * kInt8Block; i += lanes) {
      const auto code = hn::PromoteTo(di, hn::LoadU(d8, codes + i));
      const auto v = hn::Mul(hn::ConvertTo(d, code), step);
      const auto inside = hn::Min(hn::Max(v, low), high);
      hn::StoreU(hn::Mul(inside, drop), d, values + i);
    }
  }
}

void Nf4FromFloats(const float* values, size_t blocks, const float* scales,
                   uint8_t* packed) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const Nf4Search search;
  for (size_t b = 0; b < blocks; ++b) {
    const Reciprocal factors = ReciprocalOf(scales[b], 1.0f);
    const auto lift = hn::Set(d, factors.lift);
    const auto inverse = hn::Set(d, factors.inverse);
    const float* const from = values + b * kNf4Block;
    for (size_t i = 0; i < kNf4BlockBytes; i += lanes) {
      const auto x = hn::LoadU(d, from + i);
      const auto y = hn::LoadU(d, from + i + kNf4BlockBytes);
      const auto low = search.Nearest(hn::Mul(hn::Mul(x, lift), inverse));
      const auto high = search.Nearest(hn::Mul(hn::Mul(y, lift), inverse));
      const auto both = hn::Or(low, hn::ShiftLeft<4>(high));
      hn::StoreU(hn::DemoteTo(d8, both), d8, packed + b * kNf4BlockBytes + i);
    }
  }
}

void FloatsFromNf4(const uint8_t* packed, size_t blocks, const float* scales,
                   float* values) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const auto low_bits = hn::Set(di, 15);
  for (size_t b = 0; b < blocks; ++b) {
    const Nf4Table table(scales[b]);
    float* const to = values + b * kNf4Block;
    for (size_t i = 0; i < kNf4BlockBytes; i += lanes) {
      const auto both =
          hn::PromoteTo(di, hn::LoadU(d8, packed + b * kNf4BlockBytes + i));
      hn::StoreU(table.At(hn::And(both, low_bits)), d, to + i);
      hn::StoreU(table.At(hn::ShiftRight<4>(both)), d, to + i + kNf4BlockBytes);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::offload {
namespace {

constexpr double kSteps = 127;

}  // namespace

HWY_EXPORT(LargestOfBlocks);
HWY_EXPORT(Int8FromFloats);
HWY_EXPORT(FloatsFromInt8);
HWY_EXPORT(Nf4FromFloats);
HWY_EXPORT(FloatsFromNf4);

void LargestMagnitudes(const float* values, size_t blocks, size_t block,
                       float* largest) {
  HWY_DYNAMIC_DISPATCH(LargestOfBlocks)(values, blocks, block, largest);
}
void QuantizeInt8(const float* values, size_t blocks, const float* scales,
                  int8_t* codes) {
  HWY_DYNAMIC_DISPATCH(Int8FromFloats)(values, blocks, scales, codes);
}
void DequantizeInt8(const int8_t* codes, size_t blocks, const float* scales,
                    float* values) {
  HWY_DYNAMIC_DISPATCH(FloatsFromInt8)(codes, blocks, scales, values);
}
void QuantizeNf4(const float* values, size_t blocks, const float* scales,
                 uint8_t* packed) {
  HWY_DYNAMIC_DISPATCH(Nf4FromFloats)(values, blocks, scales, packed);
}
void DequantizeNf4(const uint8_t* packed, size_t blocks, const float* scales,
                   float* values) {
  HWY_DYNAMIC_DISPATCH(FloatsFromNf4)(packed, blocks, scales, values);
}

ScaleGroup QuantizeScales(std::span<const float> scales,
                          std::span<int8_t> codes) {
  double sum = 0;
  for (const float scale : scales) sum += scale;
  const float mean =
      static_cast<float>(sum / static_cast<double>(scales.size()));
  double widest = 0;
  for (const float scale : scales) {
    widest = std::max(widest, std::fabs(double{scale} - double{mean}));
  }
  const float step = static_cast<float>(widest / kSteps);
  for (size_t i = 0; i < scales.size(); ++i) {
    const double code =
        step == 0
            ? 0
            : std::nearbyint((double{scales[i]} - double{mean}) / double{step});
    codes[i] = static_cast<int8_t>(std::clamp(code, -kSteps, kSteps));
  }
  return {mean, step};
}

void DequantizeScales(ScaleGroup group, std::span<const int8_t> codes,
                      std::span<float> scales) {
  constexpr double kMost = std::numeric_limits<float>::max();
  for (size_t i = 0; i < codes.size(); ++i) {
    const double scale =
        double{group.mean} + double{group.step} * static_cast<double>(codes[i]);
    scales[i] = static_cast<float>(std::clamp(scale, 0.0, kMost));
  }
}

}  // namespace tessera::offload

#endif  // HWY_ONCE
