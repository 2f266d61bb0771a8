// Conversion of elements of each type between memory and vectors, for
// kernels-inl.h. Compiled once for every instruction set.
//
// A policy (PlainLanes<T>, F16Lanes, Bf16Lanes) defines Stored, the elements in
// memory; Tag, a vector of them; Wide, the values that are combined; and Widen
// and Narrow, which convert between Stored and Wide.
#if defined(TESSERA_COLLECTIVES_REDUCTION_LANES_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COLLECTIVES_REDUCTION_LANES_INL_H_
#undef TESSERA_COLLECTIVES_REDUCTION_LANES_INL_H_
#else
#define TESSERA_COLLECTIVES_REDUCTION_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/dtype/bfloat16-inl.h"
#include "base/dtype/float16-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::collectives::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// f64, f32 and the integers are combined in their own type.
template <typename T>
struct PlainLanes {
  using Stored = T;
  using Tag = hn::ScalableTag<T>;
  using WideTag = Tag;
  using Packed = hn::Vec<Tag>;
  using Wide = Packed;

  static HWY_INLINE Wide Widen(Packed x) { return x; }
  static HWY_INLINE Packed Narrow(Wide x) { return x; }
};

// binary16, combined in f32: half a vector of elements becomes one vector of
// values.
struct F16Lanes {
  using Stored = uint16_t;
  using WideTag = hn::ScalableTag<float>;
  using Tag = hn::Rebind<uint16_t, WideTag>;
  using Packed = hn::Vec<Tag>;
  using Wide = hn::Vec<WideTag>;

  static HWY_INLINE Wide Widen(Packed x) {
    return tessera::HWY_NAMESPACE::float16::Widen(WideTag(), x);
  }
  static HWY_INLINE Packed Narrow(Wide x) {
    return tessera::HWY_NAMESPACE::float16::Narrow(WideTag(), x);
  }
};

using tessera::HWY_NAMESPACE::bfloat16::RoundToUpperHalf;

#if HWY_TARGET == HWY_SCALAR
// bfloat16, one at a time.
struct Bf16Lanes {
  using Stored = uint16_t;
  using WideTag = hn::ScalableTag<float>;
  using Tag = hn::Rebind<uint16_t, WideTag>;
  using Bits = hn::Rebind<uint32_t, WideTag>;
  using Packed = hn::Vec<Tag>;
  using Wide = hn::Vec<WideTag>;

  static HWY_INLINE Wide Widen(Packed x) {
    return hn::BitCast(WideTag(), hn::ShiftLeft<16>(hn::PromoteTo(Bits(), x)));
  }
  static HWY_INLINE Packed Narrow(Wide x) {
    const auto bits = RoundToUpperHalf(hn::BitCast(Bits(), x));
    return hn::Set(Tag(), static_cast<uint16_t>(hn::GetLane(bits) >> 16));
  }
};
#else
template <class V>
struct Pair {
  V even, odd;
};

// bfloat16, combined in f32. A vector of elements is split into its even and
// odd elements, which needs only shifts and masks.
struct Bf16Lanes {
  using Stored = uint16_t;
  using Tag = hn::ScalableTag<uint16_t>;
  using WideTag = hn::ScalableTag<float>;
  using Bits = hn::ScalableTag<uint32_t>;
  using Packed = hn::Vec<Tag>;
  using Wide = Pair<hn::Vec<WideTag>>;

  static HWY_INLINE Wide Widen(Packed x) {
    const Bits u;
    const auto both = hn::BitCast(u, x);
    return {hn::BitCast(WideTag(), hn::ShiftLeft<16>(both)),
            hn::BitCast(WideTag(), hn::And(both, hn::Set(u, 0xffff0000u)))};
  }
  static HWY_INLINE Packed Narrow(Wide x) {
    const Bits u;
    const auto even = RoundToUpperHalf(hn::BitCast(u, x.even));
    const auto odd = RoundToUpperHalf(hn::BitCast(u, x.odd));
    return hn::BitCast(Tag(), hn::Or(hn::ShiftRight<16>(even),
                                     hn::And(odd, hn::Set(u, 0xffff0000u))));
  }
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tessera::collectives::internal
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COLLECTIVES_REDUCTION_LANES_INL_H_
