// Tiles of moments of any format, as f32 (or f64) and back. Compiled once for
// every instruction set.
#if defined(TESSERA_OFFLOAD_OPTIMIZER_MOMENTS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_OFFLOAD_OPTIMIZER_MOMENTS_INL_H_
#undef TESSERA_OFFLOAD_OPTIMIZER_MOMENTS_INL_H_
#else
#define TESSERA_OFFLOAD_OPTIMIZER_MOMENTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "offload/optimizer/blockwise-inl.h"
#include "offload/optimizer/floats-inl.h"
#include "offload/optimizer/step_job.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {

// `visit(offset, count, block)` for the blocks of elements [at, at + count),
// where `at` starts one.
template <class Visit>
HWY_INLINE void ForEachBlock(const MomentPointer& moment, int64_t at,
                             int64_t count, const Visit& visit) {
  for (int64_t i = 0; i < count; i += moment.block) {
    const int64_t size = HWY_MIN(moment.block, count - i);
    visit(i, static_cast<size_t>(size), (at + i) / moment.block);
  }
}

// The elements [at, at + count) as S: in place, or in `scratch`.
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

// Puts what LoadMoments gave back where it came from. `random` may be null: to
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
