// Loads tiles of moments of any format as f32 (or f64), and saves them.
// Compiled once for every instruction set.
#if defined(TESSERA_OFFLOAD_OPTIMIZER_MOMENTS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_OFFLOAD_OPTIMIZER_MOMENTS_INL_H_
#undef TESSERA_OFFLOAD_OPTIMIZER_MOMENTS_INL_H_
#else
#define TESSERA_OFFLOAD_OPTIMIZER_MOMENTS_INL_H_
#endif

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "offload/optimizer/dynamic_map.h"
#include "offload/optimizer/floats-inl.h"
#include "offload/optimizer/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {

template <bool kSigned>
inline constexpr std::array<float, 256> kValues = DynamicMap<kSigned>::Values();

// The values of DynamicMap for each decade, repeated for vectors of 16.
template <bool kSigned>
struct DecadeTables {
  using Map = DynamicMap<kSigned>;

  alignas(64) float first[16];
  alignas(64) float span[16];
  alignas(64) float slope[16];
  alignas(64) float next[16];  // The threshold of the next decade.

  constexpr DecadeTables() : first(), span(), slope(), next() {
    for (int i = 0; i < 16; ++i) {
      const int decade = i % 8;
      first[i] = Map::First(decade);
      span[i] = Map::Span(decade);
      // 1 is above the last steps of decade 6.
      slope[i] = Map::Slope(HWY_MIN(decade, 6));
      next[i] = decade < 6 ? Map::Threshold(decade + 1) : 2.0f;
    }
  }
};
template <bool kSigned>
inline constexpr DecadeTables<kSigned> kDecades;

// Returns the values of codes. Vectors of 8 and more look up decades within a
// register: the exponent of a rank as f32 is its decade, the mantissa its
// position there.
template <bool kSigned, class D>
HWY_INLINE hn::Vec<D> ValuesOf(D d, const uint8_t* codes) {
  if constexpr (hn::MaxLanes(D()) < 8) {
    float values[hn::MaxLanes(D())];
    for (size_t i = 0; i < hn::MaxLanes(d); ++i) {
      values[i] = kValues<kSigned>[codes[i]];
    }
    return hn::LoadU(d, values);
  } else {
    const hn::Rebind<uint8_t, D> narrow;
    const hn::Rebind<int32_t, D> wide;
    const auto code = hn::PromoteTo(wide, hn::LoadU(narrow, codes));
    const auto distance =
        hn::ConvertTo(d, kSigned ? hn::Sub(code, hn::Set(wide, 127)) : code);
    const auto magnitude = hn::Abs(distance);
    const auto rank = hn::BitCast(
        wide, kSigned ? magnitude : hn::Add(magnitude, hn::Set(d, 1.0f)));
    // The exponents of Steps(0) and its successors, modulo 8.
    constexpr int32_t kBias = kSigned ? 127 : 128;
    const auto decade =
        hn::And(hn::Sub(hn::ShiftRight<23>(rank), hn::Set(wide, kBias)),
                hn::Set(wide, 7));
    const auto lookup = hn::IndicesFromVec(d, decade);
    const auto first =
        hn::TableLookupLanes(hn::LoadU(d, kDecades<kSigned>.first), lookup);
    const auto span =
        hn::TableLookupLanes(hn::LoadU(d, kDecades<kSigned>.span), lookup);
    const auto one = hn::Set(d, 1.0f);
    const auto place = hn::Sub(
        hn::Or(hn::BitCast(d, hn::And(rank, hn::Set(wide, 0x7fffff))), one),
        one);
    const auto value = hn::IfThenElseZero(hn::Ne(magnitude, hn::Zero(d)),
                                          hn::Add(first, hn::Mul(span, place)));
    return kSigned ? hn::CopySign(value, distance) : value;
  }
}

template <bool kSigned>
HWY_INLINE void DecodeBlock(const uint8_t* codes, float largest, float* values,
                            size_t count) {
  // If the scale is not finite, every product becomes the same NaN.
  const bool is_finite = largest <= std::numeric_limits<float>::max();
  const float scale =
      is_finite ? largest : std::numeric_limits<float>::quiet_NaN();
  ForEach<float>(count, [=](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(ValuesOf<kSigned>(d, codes + i), hn::Set(d, scale)), d,
               values + i);
  });
}

// Returns the largest magnitude: NaN if there is a NaN, otherwise infinity if
// there is one.
HWY_INLINE float LargestMagnitude(const float* values, size_t count) {
  const Full<int32_t> wide;
  const Full<float> d;
  constexpr size_t kLanes = hn::MaxLanes(Full<float>());
  auto most = hn::Zero(wide);
  const auto mask = hn::Set(wide, 0x7fffffff);
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto bits = hn::BitCast(wide, hn::LoadU(d, values + i));
    most = hn::Max(most, hn::And(bits, mask));
  }
  int32_t lanes[kLanes];
  hn::StoreU(most, wide, lanes);
  int32_t largest = 0;
  for (const int32_t lane : lanes) largest = HWY_MAX(largest, lane);
  for (; i < count; ++i) {
    largest = HWY_MAX(largest, std::bit_cast<int32_t>(values[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(largest);
}

// For each magnitude the steps and the slope of its decade.
template <class V>
struct Decade {
  V steps;
  V slope;
};

// Vectors of 8 and more look up the decade of the magnitude's binade within a
// register, and take the next one if its threshold is reached.
template <bool kSigned, class D>
HWY_INLINE Decade<hn::Vec<D>> LookUpDecade(D d, hn::Vec<D> x) {
  using Map = DynamicMap<kSigned>;
  const hn::Rebind<int32_t, D> wide;
  const auto exponent = hn::ShiftRight<23>(hn::BitCast(wide, x));
  const auto times5 = hn::Add(exponent, hn::ShiftLeft<2>(exponent));
  constexpr int32_t kOffset = Map::kExponentOffset - 5 * 127;
  auto decade =
      hn::ShiftRight<4>(hn::Add(times5, hn::Set(wide, int32_t{kOffset})));
  decade = hn::Min(hn::Max(decade, hn::Zero(wide)), hn::Set(wide, 6));
  const auto next = hn::TableLookupLanes(hn::Load(d, kDecades<kSigned>.next),
                                         hn::IndicesFromVec(d, decade));
  const auto is_next = hn::RebindMask(wide, hn::Ge(x, next));
  decade = hn::Sub(decade, hn::VecFromMask(wide, is_next));
  const auto slope = hn::TableLookupLanes(hn::Load(d, kDecades<kSigned>.slope),
                                          hn::IndicesFromVec(d, decade));
  // Steps(decade) is a power of two, so setting its exponent suffices.
  const auto bits =
      hn::Add(hn::ShiftLeft<23>(decade),
              hn::Set(wide, int32_t{kSigned ? 127 << 23 : 128 << 23}));
  return {hn::BitCast(d, bits), slope};
}

// Shorter vectors compare with the threshold of each decade in turn.
template <bool kSigned, class D>
HWY_INLINE Decade<hn::Vec<D>> ClimbToDecade(D d, hn::Vec<D> x) {
  using Map = DynamicMap<kSigned>;
  auto slope = hn::Set(d, Map::Slope(0));
  auto steps = hn::Set(d, static_cast<float>(Map::Steps(0)));
  const auto climb = [&](int decade) HWY_ATTR {
    const auto is_there = hn::Ge(x, hn::Set(d, Map::Threshold(decade)));
    slope = hn::IfThenElse(is_there, hn::Set(d, Map::Slope(decade)), slope);
    steps = hn::IfThenElse(
        is_there, hn::Set(d, static_cast<float>(Map::Steps(decade))), steps);
  };
  climb(1);
  climb(2);
  climb(3);
  climb(4);
  climb(5);
  climb(6);
  return {steps, slope};
}

// Returns the ranks, except the zero rank, of magnitudes from 0 to 1 (and an
// ulp), as f32 close to an integer.
template <bool kSigned, class D>
HWY_INLINE hn::Vec<D> RanksOf(D d, hn::Vec<D> x) {
  using Map = DynamicMap<kSigned>;
  const auto decade = [&]() HWY_ATTR {
    if constexpr (hn::MaxLanes(D()) < 8) {
      return ClimbToDecade<kSigned>(d, x);
    } else {
      return LookUpDecade<kSigned>(d, x);
    }
  }();
  const auto steps = decade.steps;
  const auto offset =
      hn::Sub(hn::Mul(steps, hn::Set(d, 8.0f / 9.0f)), hn::Set(d, 0.5f));
  auto rank = hn::Add(hn::Mul(x, decade.slope), offset);
  rank = hn::Max(rank, steps);
  rank = hn::Min(rank, hn::Sub(hn::Add(steps, steps), hn::Set(d, 1.0f)));
  return hn::IfThenElse(hn::Ge(x, hn::Set(d, Map::Threshold(Map::kDecades))),
                        hn::Set(d, static_cast<float>(Map::kOneRank)), rank);
}

// Stores integers from 0 to 255 as bytes.
template <class D, class V>
HWY_INLINE void StoreBytes(D, V integers, uint8_t* to) {
  const hn::Rebind<uint8_t, D> narrow;
  const hn::Rebind<uint32_t, D> wide;
  if constexpr (hn::MaxLanes(D()) < 8) {
    hn::StoreU(hn::DemoteTo(narrow, integers), narrow, to);
  } else {
    hn::StoreU(hn::TruncateTo(narrow, hn::BitCast(wide, integers)), narrow, to);
  }
}

// Stores the codes of values times `down`, which is in [-1, 1]. If kTiny,
// multiplies by `up` first.
template <bool kSigned, bool kTiny, class D>
HWY_INLINE void StoreCodes(D d, hn::Vec<D> values, float up, float down,
                           uint8_t* codes) {
  using Map = DynamicMap<kSigned>;
  const hn::Rebind<int32_t, D> wide;
  const auto magnitude = hn::Abs(values);
  auto x = magnitude;
  if constexpr (kTiny) x = hn::Mul(x, hn::Set(d, up));
  x = hn::Mul(x, hn::Set(d, down));
  // Rounds to the nearest integer, in the low bits of 2^23 + rank.
  const auto rank = hn::And(
      hn::BitCast(wide, hn::Add(RanksOf<kSigned>(d, x), hn::Set(d, 0x1p23f))),
      hn::Set(wide, 0x1ff));
  if constexpr (kSigned) {
    const auto zero = hn::Zero(wide);
    const auto is_zero = hn::Lt(x, hn::Set(d, Map::Threshold(0)));
    const auto distance =
        hn::IfThenZeroElse(hn::RebindMask(wide, is_zero), rank);
    const auto is_negative = hn::RebindMask(wide, hn::Lt(values, hn::Zero(d)));
    const auto code =
        hn::Add(hn::Set(wide, Map::kZeroCode),
                hn::IfThenElse(is_negative, hn::Sub(zero, distance), distance));
    StoreBytes(d, hn::Max(code, zero), codes);
  } else {
    // A positive value must stay positive, since it becomes a divisor.
    const auto is_zero = hn::Eq(magnitude, hn::Zero(d));
    const auto code =
        hn::IfThenZeroElse(hn::RebindMask(wide, is_zero),
                           hn::Sub(rank, hn::Set(wide, Map::kZeroRank)));
    StoreBytes(d, code, codes);
  }
}

// Sets the codes and returns the scale of the block: its largest magnitude, or
// NaN if one of the values is not finite.
template <bool kSigned>
HWY_INLINE float EncodeBlock(const float* values, uint8_t* codes,
                             size_t count) {
  const float largest = LargestMagnitude(values, count);
  constexpr float kMax = std::numeric_limits<float>::max();
  if (!(largest > 0 && largest <= kMax)) {
    std::memset(codes, DynamicMap<kSigned>::kZeroCode, count);
    return largest == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  // The reciprocal of a subnormal could overflow, that of 2^100 loses no bits.
  const bool is_tiny = largest < 0x1p-100f;
  const float up = is_tiny ? 0x1p64f : 1.0f;
  const float down = 1.0f / (largest * up);
  if (HWY_UNLIKELY(is_tiny)) {
    ForEach<float>(count, [=](auto d, size_t i) HWY_ATTR {
      StoreCodes<kSigned, true>(d, hn::LoadU(d, values + i), up, down,
                                codes + i);
    });
  } else {
    ForEach<float>(count, [=](auto d, size_t i) HWY_ATTR {
      StoreCodes<kSigned, false>(d, hn::LoadU(d, values + i), up, down,
                                 codes + i);
    });
  }
  return largest;
}

// Calls `visit(offset, count, block)` for each block of elements [at, at +
// count), where `at` starts a block.
template <class Visit>
HWY_INLINE void ForEachBlock(const MomentPointer& moment, int64_t at,
                             int64_t count, const Visit& visit) {
  for (int64_t i = 0; i < count; i += moment.block) {
    const int64_t size = HWY_MIN(moment.block, count - i);
    visit(i, static_cast<size_t>(size), (at + i) / moment.block);
  }
}

// Returns the elements [at, at + count) as S, in place or in `scratch`.
template <typename S, bool kSigned>
HWY_INLINE S* LoadMoments(const MomentPointer& moment, int64_t at,
                          int64_t count, S* scratch) {
  if constexpr (std::is_same_v<S, double>) {
    return reinterpret_cast<double*>(moment.values) + at;
  } else {
    if (moment.type == StoredMoment::kF32) {
      return reinterpret_cast<float*>(moment.values) + at;
    }
    if (moment.type == StoredMoment::kBF16) {
      Widen(/*is_bf16=*/true,
            reinterpret_cast<const uint16_t*>(moment.values) + at, scratch,
            static_cast<size_t>(count));
      return scratch;
    }
    const auto* codes = reinterpret_cast<const uint8_t*>(moment.values) + at;
    ForEachBlock(moment, at, count,
                 [&](int64_t i, size_t size, int64_t block) HWY_ATTR {
                   DecodeBlock<kSigned>(codes + i, moment.largest[block],
                                        scratch + i, size);
                 });
    return scratch;
  }
}

// Stores the values that LoadMoments returned. If `random` is null, rounds to
// nearest even.
template <typename S, bool kSigned>
HWY_INLINE void SaveMoments(const MomentPointer& moment, int64_t at,
                            int64_t count, const S* values,
                            const RandomBits* random) {
  if constexpr (std::is_same_v<S, float>) {
    if (moment.type == StoredMoment::kF32) return;
    if (moment.type == StoredMoment::kBF16) {
      auto* to = reinterpret_cast<uint16_t*>(moment.values) + at;
      const auto size = static_cast<size_t>(count);
      if (random == nullptr) {
        Narrow(/*is_bf16=*/true, values, to, size);
      } else {
        NarrowAtRandom<kSigned>(values, to, size, *random);
      }
      return;
    }
    auto* codes = reinterpret_cast<uint8_t*>(moment.values) + at;
    ForEachBlock(moment, at, count,
                 [&](int64_t i, size_t size, int64_t block) HWY_ATTR {
                   moment.largest[block] =
                       EncodeBlock<kSigned>(values + i, codes + i, size);
                 });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_OFFLOAD_OPTIMIZER_MOMENTS_INL_H_
