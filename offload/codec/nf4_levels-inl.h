// From vectors of scaled values to the nearest of 16 levels, and from codes to
// levels: compiled once for every instruction set.
#if defined(TESSERA_OFFLOAD_CODEC_NF4_LEVELS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_OFFLOAD_CODEC_NF4_LEVELS_INL_H_
#undef TESSERA_OFFLOAD_CODEC_NF4_LEVELS_INL_H_
#else
#define TESSERA_OFFLOAD_CODEC_NF4_LEVELS_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "offload/codec/block_kernels.h"
#include "offload/codec/nf4_thresholds.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using LevelTag = hn::ScalableTag<float>;
using CodeTag = hn::RebindToSigned<LevelTag>;
using LevelVec = hn::Vec<LevelTag>;
using CodeVec = hn::Vec<CodeTag>;
inline constexpr size_t kLevelLanes = hn::MaxLanes(LevelTag());

// A table that is looked up by a shuffle needs a vector that holds it.
inline constexpr bool kShufflesTables = kLevelLanes >= 8;

// The first eight floats of `table`, over and over.
HWY_INLINE LevelVec LoadEight(const std::array<float, 8>& table) {
  HWY_ALIGN float lanes[kLevelLanes];
  for (size_t i = 0; i < kLevelLanes; ++i) lanes[i] = table[i % 8];
  return hn::Load(LevelTag(), lanes);
}
HWY_INLINE LevelVec Shuffle(LevelVec table, CodeVec index) {
  const LevelTag d;
  return hn::TableLookupLanes(table, hn::IndicesFromVec(d, index));
}

// How many of the 15 thresholds between the levels are below a value: by
// halving, where shuffles find the next threshold, or by counting.
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
  // -1 where the mask is set.
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

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_OFFLOAD_CODEC_NF4_LEVELS_INL_H_
