// The kernels of combine.cc, compiled once for every instruction set: included
// again and again by Highway's foreach_target.h.
//
// A range is combined block by block: a block of the widened first source is
// folded with each further source in the first-level cache, narrowed, and
// written out. Every loop runs over local arrays of a fixed size, so that the
// compiler vectorises it without having to prove that sources and destinations
// do not overlap (in place they do). What is left after memory's bandwidth is
// small: a block takes two loads and a store from the first-level cache for
// each load from memory.
#if defined(TESSERA_COLLECTIVES_REDUCTION_COMBINE_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COLLECTIVES_REDUCTION_COMBINE_INL_H_
#undef TESSERA_COLLECTIVES_REDUCTION_COMBINE_INL_H_
#else
#define TESSERA_COLLECTIVES_REDUCTION_COMBINE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/dtype/bfloat16.h"
#include "base/dtype/dtype_traits.h"
#include "base/dtype/float16.h"
#include "collectives/reduction/combine.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::collectives {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kBlock = 512;  // Elements; a multiple of every vector.

// What elements of type T are combined in: f32 for the short ones, the unsigned
// type for integers, whose overflow wraps.
template <typename T>
struct WideOf {
  using type = T;
};
template <>
struct WideOf<F16> {
  using type = float;
};
template <>
struct WideOf<BF16> {
  using type = float;
};
template <typename T>
using Wide = typename WideOf<T>::type;

enum class Fold { kAdd, kMultiply, kMin, kMax };

template <Fold fold, typename W>
HWY_INLINE W Apply(W a, W b) {
  if constexpr (std::is_integral_v<W>) {
    using U = std::make_unsigned_t<W>;
    // Products of short types are computed in int, which they cannot overflow.
    using P = std::conditional_t<(sizeof(U) < sizeof(uint32_t)), uint32_t, U>;
    if constexpr (fold == Fold::kAdd) {
      return static_cast<W>(static_cast<U>(a) + static_cast<U>(b));
    } else if constexpr (fold == Fold::kMultiply) {
      return static_cast<W>(static_cast<P>(a) * static_cast<P>(b));
    } else if constexpr (fold == Fold::kMin) {
      return a < b ? a : b;
    } else {
      return a > b ? a : b;
    }
  } else {
    if constexpr (fold == Fold::kAdd) return a + b;
    if constexpr (fold == Fold::kMultiply) return a * b;
    // A NaN on either side wins: it compares as false with everything.
    if constexpr (fold == Fold::kMin) return (a < b) | (a != a) ? a : b;
    return (a > b) | (a != a) ? a : b;
  }
}

// Widening and narrowing of one element, for types other than F16.
template <typename T>
HWY_INLINE Wide<T> WidenOne(T x) {
  if constexpr (std::is_same_v<T, BF16>) {
    return std::bit_cast<float>(
        static_cast<uint32_t>(std::bit_cast<uint16_t>(x)) << 16);
  } else {
    return x;
  }
}

// To nearest even; NaN keeps its sign and its upper bits, made quiet.
HWY_INLINE uint16_t NarrowToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan
                                                                  : rounded);
}

#if HWY_TARGET <= HWY_AVX2
inline constexpr bool kHasF16Vectors = true;
#else
inline constexpr bool kHasF16Vectors = false;
#endif

HWY_INLINE void WidenF16(const F16* in, float* HWY_RESTRICT out, int count) {
  int i = 0;
  if constexpr (kHasF16Vectors) {
    const hn::ScalableTag<float> wide;
    const hn::Rebind<hwy::float16_t, decltype(wide)> narrow;
    const int lanes = static_cast<int>(hn::Lanes(wide));
    const auto* bits = reinterpret_cast<const hwy::float16_t*>(in);
    for (; i + lanes <= count; i += lanes) {
      hn::StoreU(hn::PromoteTo(wide, hn::LoadU(narrow, bits + i)), wide,
                 out + i);
    }
  }
  for (; i < count; ++i) out[i] = static_cast<float>(in[i]);
}

HWY_INLINE void NarrowF16(const float* in, F16* HWY_RESTRICT out, int count) {
  int i = 0;
  if constexpr (kHasF16Vectors) {
    const hn::ScalableTag<float> wide;
    const hn::Rebind<hwy::float16_t, decltype(wide)> narrow;
    const int lanes = static_cast<int>(hn::Lanes(wide));
    auto* bits = reinterpret_cast<hwy::float16_t*>(out);
    for (; i + lanes <= count; i += lanes) {
      hn::StoreU(hn::DemoteTo(narrow, hn::LoadU(wide, in + i)), narrow,
                 bits + i);
    }
  }
  for (; i < count; ++i) out[i] = F16(in[i]);
}

// A block of one source, widened and scaled.
template <typename T>
HWY_INLINE void LoadBlock(const T* in, double scale, Wide<T>* HWY_RESTRICT out,
                          int count) {
  using W = Wide<T>;
  if constexpr (std::is_same_v<T, F16>) {
    WidenF16(in, out, count);
  } else {
    for (int i = 0; i < count; ++i) out[i] = WidenOne(in[i]);
  }
  if (scale == 1.0) return;
  const W factor = static_cast<W>(scale);
  for (int i = 0; i < count; ++i) {
    out[i] = Apply<Fold::kMultiply>(out[i], factor);
  }
}

template <Fold fold, typename T>
HWY_INLINE void FoldBlock(const T* in, double scale, Wide<T>* HWY_RESTRICT sums,
                          int count) {
  if constexpr (std::is_same_v<T, F16>) {
    alignas(64) Wide<T> wide[kBlock];
    LoadBlock(in, scale, wide, count);
    for (int i = 0; i < count; ++i) sums[i] = Apply<fold>(sums[i], wide[i]);
  } else if (scale == 1.0) {
    for (int i = 0; i < count; ++i) {
      sums[i] = Apply<fold>(sums[i], WidenOne(in[i]));
    }
  } else {
    const auto factor = static_cast<Wide<T>>(scale);
    for (int i = 0; i < count; ++i) {
      sums[i] =
          Apply<fold>(sums[i], Apply<Fold::kMultiply>(WidenOne(in[i]), factor));
    }
  }
}

template <typename W>
HWY_INLINE void DivideBlock(int64_t divisor, W* HWY_RESTRICT sums, int count) {
  if constexpr (std::is_floating_point_v<W>) {
    if ((divisor & (divisor - 1)) == 0) {
      const W reciprocal = W{1} / static_cast<W>(divisor);  // Exact.
      for (int i = 0; i < count; ++i) sums[i] *= reciprocal;
    } else {
      const W by = static_cast<W>(divisor);
      for (int i = 0; i < count; ++i) sums[i] /= by;
    }
  } else {
    for (int i = 0; i < count; ++i) {
      sums[i] = static_cast<W>(static_cast<int64_t>(sums[i]) / divisor);
    }
  }
}

// Writes 64-byte lines past the caches where the destination is aligned.
HWY_INLINE void StreamBlock(const std::byte* in, std::byte* out, int bytes) {
  const auto misaligned =
      static_cast<int>(-reinterpret_cast<uintptr_t>(out) & 63);
  const int head = std::min(misaligned, bytes);
  std::memcpy(out, in, static_cast<size_t>(head));
  const hn::ScalableTag<uint8_t> bytes_tag;
  const int lanes = static_cast<int>(hn::Lanes(bytes_tag));
  int i = head;
  for (; i + 64 <= bytes; i += 64) {
    for (int j = 0; j < 64; j += lanes) {
      hn::Stream(
          hn::LoadU(bytes_tag, reinterpret_cast<const uint8_t*>(in) + i + j),
          bytes_tag, reinterpret_cast<uint8_t*>(out) + i + j);
    }
  }
  std::memcpy(out + i, in + i, static_cast<size_t>(bytes - i));
}

template <typename T>
HWY_INLINE void StoreBlock(const Wide<T>* sums, StoreMode mode, int64_t at,
                           std::span<void* const> destinations, int count) {
  alignas(64) T narrowed[kBlock];
  const T* block = narrowed;
  if constexpr (std::is_same_v<T, F16>) {
    NarrowF16(sums, narrowed, count);
  } else if constexpr (std::is_same_v<T, BF16>) {
    auto* bits = reinterpret_cast<uint16_t*>(narrowed);
    for (int i = 0; i < count; ++i) bits[i] = NarrowToBf16(sums[i]);
  } else {
    block = sums;
  }
  const auto bytes = static_cast<size_t>(count) * sizeof(T);
  for (void* const destination : destinations) {
    T* const out = static_cast<T*>(destination) + at;
    if (mode == StoreMode::kStreaming) {
      StreamBlock(reinterpret_cast<const std::byte*>(block),
                  reinterpret_cast<std::byte*>(out), static_cast<int>(bytes));
    } else {
      std::memcpy(out, block, bytes);
    }
  }
}

template <Fold fold, typename T>
void CombineRange(const Combination& c, std::span<const void* const> sources,
                  std::span<void* const> destinations, int64_t total) {
  alignas(64) Wide<T> sums[kBlock];
  const auto first = static_cast<const T*>(sources[0]);
  for (int64_t at = 0; at < total; at += kBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kBlock, total - at));
    LoadBlock(first + at, c.input_scale, sums, count);
    for (const void* const source : sources.subspan(1)) {
      FoldBlock<fold>(static_cast<const T*>(source) + at, c.input_scale, sums,
                      count);
    }
    if (c.divisor != 1) DivideBlock(c.divisor, sums, count);
    StoreBlock<T>(sums, c.stores, at, destinations, count);
  }
}

template <typename T>
void CombineType(const Combination& c, std::span<const void* const> sources,
                 std::span<void* const> destinations, int64_t count) {
  switch (c.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kScaledSum:
      return CombineRange<Fold::kAdd, T>(c, sources, destinations, count);
    case ReduceOp::kProduct:
      return CombineRange<Fold::kMultiply, T>(c, sources, destinations, count);
    case ReduceOp::kMin:
      return CombineRange<Fold::kMin, T>(c, sources, destinations, count);
    case ReduceOp::kMax:
      return CombineRange<Fold::kMax, T>(c, sources, destinations, count);
  }
}

void CombineAny(const Combination& c, std::span<const void* const> sources,
                std::span<void* const> destinations, int64_t count) {
  switch (c.dtype) {
    case DType::kF64:
      CombineType<double>(c, sources, destinations, count);
      break;
    case DType::kF32:
      CombineType<float>(c, sources, destinations, count);
      break;
    case DType::kF16:
      CombineType<F16>(c, sources, destinations, count);
      break;
    case DType::kBF16:
      CombineType<BF16>(c, sources, destinations, count);
      break;
    case DType::kI64:
      CombineType<int64_t>(c, sources, destinations, count);
      break;
    case DType::kI32:
      CombineType<int32_t>(c, sources, destinations, count);
      break;
    case DType::kI8:
      CombineType<int8_t>(c, sources, destinations, count);
      break;
    case DType::kU8:
      CombineType<uint8_t>(c, sources, destinations, count);
      break;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      break;  // Not reducible; refused long before.
  }
  if (c.stores == StoreMode::kStreaming) hwy::FlushStream();
}

void StreamBytes(std::byte* out, const std::byte* in, int64_t bytes) {
  constexpr int64_t kPiece = 1 << 20;
  for (int64_t at = 0; at < bytes; at += kPiece) {
    StreamBlock(in + at, out + at,
                static_cast<int>(std::min(kPiece, bytes - at)));
  }
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::collectives
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COLLECTIVES_REDUCTION_COMBINE_INL_H_
