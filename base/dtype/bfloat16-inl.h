// Vector conversions between bf16 and f32, for the kernels of other modules;
// BF16 of small_float.h converts one value. They are compiled for every
// instruction set of the including file, with the same bits for each.
//
//   const hn::ScalableTag<float> d;
//   const hn::Rebind<uint16_t, decltype(d)> half;
//   const auto x = bfloat16::Widen(d, hn::LoadU(half, bits));
//   hn::StoreU(bfloat16::Narrow(d, x), half, bits);
#if defined(TESSERA_BASE_DTYPE_BFLOAT16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_BASE_DTYPE_BFLOAT16_INL_H_
#undef TESSERA_BASE_DTYPE_BFLOAT16_INL_H_
#else
#define TESSERA_BASE_DTYPE_BFLOAT16_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {
namespace bfloat16 {
namespace hn = hwy::HWY_NAMESPACE;

// As many elements as D has.
template <class D>
using Bits = hn::Vec<hn::Rebind<uint16_t, D>>;

// The f32 with these bits in its upper half. A NaN keeps its bits.
template <class D>
HWY_INLINE hn::Vec<D> Widen(D d, Bits<D> bits) {
  const hn::Rebind<uint32_t, D> u;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(u, bits)));
}

// The upper halves of the u32 vector `bits`.
template <class V>
HWY_INLINE auto UpperHalf(V bits) {
  const hn::DFromV<V> u;
  const hn::RebindToSigned<decltype(u)> i;
  return hn::DemoteTo(hn::Rebind<uint16_t, decltype(u)>(),
                      hn::BitCast(i, hn::ShiftRight<16>(bits)));
}

// Rounds the bits of an f32 to nearest even in the upper half; the lower half
// is undefined. A NaN must not have a payload in its lower half, which would
// carry into the upper one.
template <class V>
HWY_INLINE V RoundToUpperHalf(V bits) {
  const hn::DFromV<V> u;
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fff)));
}

// Rounds to nearest even; a NaN becomes quiet, with its sign and the upper bits
// of its payload.
template <class D>
HWY_INLINE Bits<D> Narrow(D, hn::Vec<D> x) {
  const hn::Rebind<uint32_t, D> u;
  const auto bits = hn::BitCast(u, x);
  const auto quiet = hn::Or(bits, hn::Set(u, 0x400000));
  const auto is_nan = hn::RebindMask(u, hn::IsNaN(x));
  return UpperHalf(hn::IfThenElse(is_nan, quiet, RoundToUpperHalf(bits)));
}

}  // namespace bfloat16
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_BASE_DTYPE_BFLOAT16_INL_H_
