#include "offload/codec/half_conversion.h"

#include <cstdint>
#include <cstring>

#include "base/highway_targets.h"
#include "base/status_macros.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/codec/half_conversion.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "base/dtype/bfloat16-inl.h"
#include "base/dtype/float16-inl.h"
#include "hwy/highway.h"

#ifndef TESSERA_OFFLOAD_CODEC_NARROW_HALF_CONVERSION_ONCE_
#define TESSERA_OFFLOAD_CODEC_NARROW_HALF_CONVERSION_ONCE_
namespace tessera::offload {

// A conversion between f32 and a 16-bit type.
struct HalfConversion {
  bool is_bf16 = false;
  bool narrows = false;    // f32 to 16 bits
  bool saturates = false;  // where it narrows
};

}  // namespace tessera::offload
#endif  // TESSERA_OFFLOAD_CODEC_NARROW_HALF_CONVERSION_ONCE_

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;
using DHalf = hn::Rebind<uint16_t, DF>;
using VF = hn::Vec<DF>;
using VHalf = hn::Vec<DHalf>;

constexpr float kMaxFloat16 = 65504.0f;
constexpr float kMaxBFloat16 = 0x1.fep127f;

// Load and store at any address.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const std::byte* from) {
  const hn::Repartition<uint8_t, D> d8;
  return hn::BitCast(d, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(from)));
}
template <class D>
HWY_INLINE void StoreBytes(D d, hn::Vec<D> v, std::byte* to) {
  const hn::Repartition<uint8_t, D> d8;
  hn::StoreU(hn::BitCast(d8, v), d8, reinterpret_cast<uint8_t*>(to));
}

// Returns `bits` of v, with NaNs made quiet by setting the bit `quiet`.
HWY_INLINE hn::Vec<DU> Quiet(VF v, hn::Vec<DU> bits, uint32_t quiet) {
  const DU u;
  const auto is_nan = hn::RebindMask(u, hn::IsNaN(v));
  return hn::Or(bits, hn::IfThenElseZero(is_nan, hn::Set(u, quiet)));
}

HWY_INLINE VF WidenBFloat16(VHalf half) {
  const DF d;
  const VF v = tessera::HWY_NAMESPACE::bfloat16::Widen(d, half);
  return hn::BitCast(d, Quiet(v, hn::BitCast(DU(), v), 0x400000));
}

HWY_INLINE VHalf NarrowToBFloat16(VF v) {
  return tessera::HWY_NAMESPACE::bfloat16::Narrow(DF(), v);
}

// F16C keeps NaN payloads and makes NaNs quiet.
HWY_INLINE VF WidenFloat16(VHalf half) {
  return tessera::HWY_NAMESPACE::float16::Widen(DF(), half);
}
HWY_INLINE VHalf NarrowToFloat16(VF v) {
  return tessera::HWY_NAMESPACE::float16::Narrow(DF(), v);
}

// Clamps magnitudes (and infinities) to `most`.
HWY_INLINE VF Saturate(VF v, float most) {
  const DF d;
  const auto limit = hn::Set(d, most);
  return hn::IfThenElse(hn::Gt(hn::Abs(v), limit), hn::CopySign(limit, v), v);
}

template <bool kIsBF16>
size_t WidenAll(const std::byte* from, std::byte* to, size_t count) {
  const DF d;
  const DHalf d_half;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const VHalf half = LoadBytes(d_half, from + 2 * i);
    if constexpr (kIsBF16) {
      StoreBytes(d, WidenBFloat16(half), to + 4 * i);
    } else {
      StoreBytes(d, WidenFloat16(half), to + 4 * i);
    }
  }
  return i;
}

template <bool kIsBF16, bool kSaturates>
size_t NarrowAll(const std::byte* from, std::byte* to, size_t count) {
  const DF d;
  const DHalf d_half;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    VF v = LoadBytes(d, from + 4 * i);
    if constexpr (kSaturates) {
      v = Saturate(v, kIsBF16 ? kMaxBFloat16 : kMaxFloat16);
    }
    if constexpr (kIsBF16) {
      StoreBytes(d_half, NarrowToBFloat16(v), to + 2 * i);
    } else {
      StoreBytes(d_half, NarrowToFloat16(v), to + 2 * i);
    }
  }
  return i;
}

// Returns the number of converted elements, in whole vectors.
size_t ConvertVectors(const HalfConversion& how, const std::byte* from,
                      std::byte* to, size_t count) {
  if (!how.narrows) {
    return (how.is_bf16 ? WidenAll<true> : WidenAll<false>)(from, to, count);
  }
  if (how.saturates) {
    return (how.is_bf16 ? NarrowAll<true, true>
                        : NarrowAll<false, true>)(from, to, count);
  }
  return (how.is_bf16 ? NarrowAll<true, false>
                      : NarrowAll<false, false>)(from, to, count);
}

// Sets i to the end of the last whole vector; returns whether any of the first
// i elements is infinite.
bool FindInfinity(const std::byte* halves, size_t count, uint16_t infinity,
                  size_t& i) {
  const hn::ScalableTag<uint16_t> d;
  const auto magnitude = hn::Set(d, 0x7fff);
  const auto wanted = hn::Set(d, infinity);
  auto found = hn::Zero(d);
  for (i = 0; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto v = hn::And(LoadBytes(d, halves + 2 * i), magnitude);
    found = hn::Or(found, hn::VecFromMask(d, hn::Eq(v, wanted)));
  }
  return !hn::AllTrue(d, hn::Eq(found, hn::Zero(d)));
}

#else

bool FindInfinity(const std::byte* /*halves*/, size_t /*count*/,
                  uint16_t /*infinity*/, size_t& i) {
  i = 0;
  return false;
}

size_t ConvertVectors(const HalfConversion& /*how*/, const std::byte* /*from*/,
                      std::byte* /*to*/, size_t /*count*/) {
  return 0;
}

#endif  // HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::offload {

HWY_EXPORT(ConvertVectors);
HWY_EXPORT(FindInfinity);

namespace {

bool IsHalf(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace

absl::Status ConvertFloats(DType from, std::span<const std::byte> source,
                           DType to, std::span<std::byte> target,
                           FloatOverflow overflow) {
  const bool narrows = from == DType::kF32 && IsHalf(to);
  const bool widens = IsHalf(from) && to == DType::kF32;
  if (!narrows && !widens) return Convert(from, source, to, target, overflow);
  TESSERA_RETURN_IF_ERROR(
      CheckConvertSizes(from, source.size(), to, target.size()));
  const HalfConversion how = {
      .is_bf16 = (narrows ? to : from) == DType::kBF16,
      .narrows = narrows,
      .saturates = overflow == FloatOverflow::kSaturate};
  const auto from_size = static_cast<size_t>(SizeInBytes(from));
  const auto to_size = static_cast<size_t>(SizeInBytes(to));
  const size_t done = HWY_DYNAMIC_DISPATCH(ConvertVectors)(
      how, source.data(), target.data(), source.size() / from_size);
  return Convert(from, source.subspan(done * from_size), to,
                 target.subspan(done * to_size), overflow);
}

bool HasInfinity(DType half, std::span<const std::byte> halves) {
  const uint16_t infinity = half == DType::kF16 ? 0x7c00 : 0x7f80;
  const size_t count = halves.size() / sizeof(uint16_t);
  size_t i = 0;
  bool found =
      HWY_DYNAMIC_DISPATCH(FindInfinity)(halves.data(), count, infinity, i);
  for (; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, &halves[i * sizeof(bits)], sizeof(bits));
    found |= (bits & 0x7fff) == infinity;
  }
  return found;
}

}  // namespace tessera::offload
#endif  // HWY_ONCE
