#include "offload/codec/byte_planes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/codec/byte_planes.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Scalar loops for the ends of arrays.
template <typename U, int kRotation>
void SplitTail(const std::byte* values, size_t from, size_t count,
               std::byte* const* planes) {
  for (size_t i = from; i < count; ++i) {
    U element;
    std::memcpy(&element, values + i * sizeof(U), sizeof(U));
    const U rotated = std::rotl(element, kRotation);
    for (size_t p = 0; p < sizeof(U); ++p) {
      planes[p][i] = static_cast<std::byte>(rotated >> (8 * p));
    }
  }
}
template <typename U, int kRotation>
void MergeTail(const std::byte* const* planes, size_t from, size_t count,
               std::byte* values) {
  for (size_t i = from; i < count; ++i) {
    U rotated = 0;
    for (size_t p = 0; p < sizeof(U); ++p) {
      rotated =
          static_cast<U>(rotated | static_cast<U>(planes[p][i]) << (8 * p));
    }
    const U element = std::rotr(rotated, kRotation);
    std::memcpy(values + i * sizeof(U), &element, sizeof(U));
  }
}

#if HWY_TARGET == HWY_SCALAR

// No vectors: the scalar loop handles the whole array.
template <typename U, int kRotation>
void Split(const std::byte* values, size_t count, std::byte* const* planes) {
  SplitTail<U, kRotation>(values, 0, count, planes);
}
template <typename U, int kRotation>
void Merge(const std::byte* const* planes, size_t count, std::byte* values) {
  MergeTail<U, kRotation>(planes, 0, count, values);
}

#else

using D8 = hn::ScalableTag<uint8_t>;
using V8 = hn::Vec<D8>;

HWY_INLINE const uint8_t* In(const std::byte* at) {
  return reinterpret_cast<const uint8_t*>(at);
}
HWY_INLINE uint8_t* Out(std::byte* at) {
  return reinterpret_cast<uint8_t*>(at);
}

// Vector `index` of `from`, its elements of type U rotated.
template <typename U, int kRotation>
HWY_INLINE V8 LoadRotated(const std::byte* from, size_t index) {
  const D8 d8;
  const hn::Repartition<U, D8> d;
  const V8 bytes = hn::LoadU(d8, In(from) + index * hn::Lanes(d8));
  if constexpr (kRotation == 0) {
    return bytes;
  } else {
    const auto v = hn::BitCast(d, bytes);
    constexpr int kBack = static_cast<int>(8 * sizeof(U)) - kRotation;
    return hn::BitCast(
        d8, hn::Or(hn::ShiftLeft<kRotation>(v), hn::ShiftRight<kBack>(v)));
  }
}

// Shifts `high` right by one bit, and inserts the lowest bit of `carry` on top.
HWY_INLINE V8 ShiftIn(V8 high, V8 carry) {
  return hn::Or(hn::ShiftRight<1>(high), hn::ShiftLeft<7>(carry));
}

// Splits elements i to i + StepOf<U>() of `values` into index i of the planes.
// The first argument selects the type.
template <int kRotation>
HWY_INLINE void SplitStep(uint16_t, const std::byte* values, size_t i,
                          std::byte* const* planes) {
  const D8 d8;
  const V8 a = LoadRotated<uint16_t, kRotation>(values + 2 * i, 0);
  const V8 b = LoadRotated<uint16_t, kRotation>(values + 2 * i, 1);
  hn::StoreU(hn::ConcatEven(d8, b, a), d8, Out(planes[0] + i));
  hn::StoreU(hn::ConcatOdd(d8, b, a), d8, Out(planes[1] + i));
}

template <int kRotation>
HWY_INLINE void MergeStep(uint16_t, const std::byte* const* planes, size_t i,
                          std::byte* values) {
  const D8 d8;
  V8 low = hn::LoadU(d8, In(planes[0] + i));
  V8 high = hn::LoadU(d8, In(planes[1] + i));
  if constexpr (kRotation == 1) {
    const V8 sign = low;
    low = ShiftIn(low, high);
    high = ShiftIn(high, sign);
  }
  hn::StoreInterleaved2(low, high, d8, Out(values + 2 * i));
}

template <int kRotation>
HWY_INLINE void SplitStep(uint32_t, const std::byte* values, size_t i,
                          std::byte* const* planes) {
  const D8 d8;
  const V8 a = LoadRotated<uint32_t, kRotation>(values + 4 * i, 0);
  const V8 b = LoadRotated<uint32_t, kRotation>(values + 4 * i, 1);
  const V8 c = LoadRotated<uint32_t, kRotation>(values + 4 * i, 2);
  const V8 d = LoadRotated<uint32_t, kRotation>(values + 4 * i, 3);
  const V8 even0 = hn::ConcatEven(d8, b, a), even1 = hn::ConcatEven(d8, d, c);
  const V8 odd0 = hn::ConcatOdd(d8, b, a), odd1 = hn::ConcatOdd(d8, d, c);
  hn::StoreU(hn::ConcatEven(d8, even1, even0), d8, Out(planes[0] + i));
  hn::StoreU(hn::ConcatEven(d8, odd1, odd0), d8, Out(planes[1] + i));
  hn::StoreU(hn::ConcatOdd(d8, even1, even0), d8, Out(planes[2] + i));
  hn::StoreU(hn::ConcatOdd(d8, odd1, odd0), d8, Out(planes[3] + i));
}

template <int kRotation>
HWY_INLINE void MergeStep(uint32_t, const std::byte* const* planes, size_t i,
                          std::byte* values) {
  const D8 d8;
  V8 b0 = hn::LoadU(d8, In(planes[0] + i));
  V8 b1 = hn::LoadU(d8, In(planes[1] + i));
  V8 b2 = hn::LoadU(d8, In(planes[2] + i));
  V8 b3 = hn::LoadU(d8, In(planes[3] + i));
  if constexpr (kRotation == 1) {
    const V8 sign = b0;
    b0 = ShiftIn(b0, b1);
    b1 = ShiftIn(b1, b2);
    b2 = ShiftIn(b2, b3);
    b3 = ShiftIn(b3, sign);
  }
  hn::StoreInterleaved4(b0, b1, b2, b3, d8, Out(values + 4 * i));
}

// Eight planes: four of the low halves and four of the high halves.
inline constexpr size_t kHalves = 256;  // Elements at a time.

template <typename U>
HWY_INLINE size_t StepOf() {
  return sizeof(U) == 8 ? kHalves : hn::Lanes(D8());
}

template <int kRotation>
HWY_INLINE void SplitStep(uint64_t, const std::byte* values, size_t i,
                          std::byte* const* planes) {
  const D8 d8;
  const hn::Repartition<uint32_t, D8> d32;
  HWY_ALIGN uint32_t both[2 * kHalves], low[kHalves], high[kHalves];
  std::byte* const bytes = reinterpret_cast<std::byte*>(both);
  for (size_t v = 0; v < sizeof(both) / hn::Lanes(d8); ++v) {
    hn::StoreU(LoadRotated<uint64_t, kRotation>(values + 8 * i, v), d8,
               Out(bytes) + v * hn::Lanes(d8));
  }
  for (size_t j = 0; j < kHalves; j += hn::Lanes(d32)) {
    hn::Vec<decltype(d32)> l, h;
    hn::LoadInterleaved2(d32, both + 2 * j, l, h);
    hn::Store(l, d32, low + j);
    hn::Store(h, d32, high + j);
  }
  std::byte* at[8];
  for (size_t p = 0; p < 8; ++p) at[p] = planes[p] + i;
  for (size_t j = 0; j < kHalves; j += StepOf<uint32_t>()) {
    SplitStep<0>(uint32_t{}, reinterpret_cast<const std::byte*>(low), j, at);
    SplitStep<0>(uint32_t{}, reinterpret_cast<const std::byte*>(high), j,
                 at + 4);
  }
}

template <int kRotation>
HWY_INLINE void MergeStep(uint64_t, const std::byte* const* planes, size_t i,
                          std::byte* values) {
  const hn::ScalableTag<uint64_t> d64;
  const hn::Repartition<uint32_t, decltype(d64)> d32;
  HWY_ALIGN uint64_t both[kHalves];
  HWY_ALIGN uint32_t low[kHalves], high[kHalves];
  const std::byte* at[8];
  for (size_t p = 0; p < 8; ++p) at[p] = planes[p] + i;
  for (size_t j = 0; j < kHalves; j += StepOf<uint32_t>()) {
    MergeStep<0>(uint32_t{}, at, j, reinterpret_cast<std::byte*>(low));
    MergeStep<0>(uint32_t{}, at + 4, j, reinterpret_cast<std::byte*>(high));
  }
  for (size_t j = 0; j < kHalves; j += hn::Lanes(d32)) {
    hn::StoreInterleaved2(hn::Load(d32, low + j), hn::Load(d32, high + j), d32,
                          reinterpret_cast<uint32_t*>(both + j));
  }
  for (size_t j = 0; j < kHalves; j += hn::Lanes(d64)) {
    auto v = hn::Load(d64, both + j);
    if constexpr (kRotation != 0) {
      v = hn::Or(hn::ShiftRight<kRotation>(v),
                 hn::ShiftLeft<64 - kRotation>(v));
    }
    hn::StoreU(hn::BitCast(D8(), v), D8(), Out(values + 8 * (i + j)));
  }
}

template <typename U, int kRotation>
void Split(const std::byte* values, size_t count, std::byte* const* planes) {
  const size_t step = StepOf<U>();
  size_t i = 0;
  for (; i + step <= count; i += step) {
    SplitStep<kRotation>(U{}, values, i, planes);
  }
  SplitTail<U, kRotation>(values, i, count, planes);
}

template <typename U, int kRotation>
void Merge(const std::byte* const* planes, size_t count, std::byte* values) {
  const size_t step = StepOf<U>();
  size_t i = 0;
  for (; i + step <= count; i += step) {
    MergeStep<kRotation>(U{}, planes, i, values);
  }
  MergeTail<U, kRotation>(planes, i, count, values);
}

#endif  // HWY_TARGET == HWY_SCALAR

void SplitAny(PlaneShape shape, const std::byte* values, size_t count,
              std::byte* const* planes) {
  switch (shape.planes) {
    case 1:
      std::copy_n(values, count, planes[0]);
      return;
    case 2:
      return (shape.rotation == 0 ? Split<uint16_t, 0>
                                  : Split<uint16_t, 1>)(values, count, planes);
    case 4:
      return (shape.rotation == 0 ? Split<uint32_t, 0>
                                  : Split<uint32_t, 1>)(values, count, planes);
    default:
      return (shape.rotation == 0 ? Split<uint64_t, 0>
                                  : Split<uint64_t, 4>)(values, count, planes);
  }
}

void MergeAny(PlaneShape shape, const std::byte* const* planes, size_t count,
              std::byte* values) {
  switch (shape.planes) {
    case 1:
      std::copy_n(planes[0], count, values);
      return;
    case 2:
      return (shape.rotation == 0 ? Merge<uint16_t, 0>
                                  : Merge<uint16_t, 1>)(planes, count, values);
    case 4:
      return (shape.rotation == 0 ? Merge<uint32_t, 0>
                                  : Merge<uint32_t, 1>)(planes, count, values);
    default:
      return (shape.rotation == 0 ? Merge<uint64_t, 0>
                                  : Merge<uint64_t, 4>)(planes, count, values);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::offload {

HWY_EXPORT(SplitAny);
HWY_EXPORT(MergeAny);

void SplitPlanes(PlaneShape shape, const std::byte* values, size_t count,
                 std::byte* const* planes) {
  HWY_DYNAMIC_DISPATCH(SplitAny)(shape, values, count, planes);
}
void MergePlanes(PlaneShape shape, const std::byte* const* planes, size_t count,
                 std::byte* values) {
  HWY_DYNAMIC_DISPATCH(MergeAny)(shape, planes, count, values);
}

}  // namespace tessera::offload
#endif  // HWY_ONCE
