// Vector conversions between f16 and f32, for the kernels of other modules.
// They are compiled for every instruction set of the including file, with the
// same bits for each. Highway's own conversions do not suffice: without a
// processor instruction they round differently and turn infinity into 65536.
//
//   const hn::ScalableTag<float> d;
//   const hn::Rebind<uint16_t, decltype(d)> half;
//   const auto x = float16::Widen(d, hn::LoadU(half, bits));
//   hn::StoreU(float16::Narrow(d, x), half, bits);
#if defined(TESSERA_BASE_DTYPE_FLOAT16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_BASE_DTYPE_FLOAT16_INL_H_
#undef TESSERA_BASE_DTYPE_FLOAT16_INL_H_
#else
#define TESSERA_BASE_DTYPE_FLOAT16_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {
namespace float16 {
namespace hn = hwy::HWY_NAMESPACE;

// As many elements as D has.
template <class D>
using Bits = hn::Vec<hn::Rebind<uint16_t, D>>;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // F16C rounds to nearest even.

template <class D>
HWY_INLINE hn::Vec<D> Widen(D d, Bits<D> bits) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
}

template <class D>
HWY_INLINE Bits<D> Narrow(D, hn::Vec<D> x) {
  return hn::BitCast(hn::Rebind<uint16_t, D>(),
                     hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), x));
}

#else

// A multiplication changes the exponent's bias and normalises subnormals.
template <class D>
HWY_INLINE hn::Vec<D> Widen(D d, Bits<D> half) {
  const hn::Rebind<uint32_t, D> u;
  const hn::Rebind<int32_t, D> i;
  const auto bits = hn::PromoteTo(u, half);
  const auto magnitude = hn::And(bits, hn::Set(u, 0x7fff));
  const auto value = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)),
                             hn::Set(d, 0x1p112f));
  const auto is_special = hn::Gt(hn::BitCast(i, magnitude), hn::Set(i, 0x7bff));
  const auto exponent =
      hn::IfThenElseZero(is_special, hn::Set(i, int32_t{0x7f800000}));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(u, 0x8000)));
  return hn::BitCast(
      d, hn::Or(hn::Or(sign, hn::BitCast(u, value)), hn::BitCast(u, exponent)));
}

// Rounds to nearest even; every NaN becomes the quiet NaN.
template <class D>
HWY_INLINE Bits<D> Narrow(D d, hn::Vec<D> x) {
  const hn::Rebind<int32_t, D> i;
  const auto bits = hn::BitCast(i, x);
  const auto magnitude = hn::And(bits, hn::Set(i, 0x7fffffff));
  // Below 2^-14, 0.5 and the result have the same unit in the last place, so
  // adding 0.5 rounds.
  const auto subnormal = hn::Sub(
      hn::BitCast(i, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f))),
      hn::Set(i, 0x3f000000));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(i, 1));
  const auto normal = hn::ShiftRight<13>(
      hn::Add(hn::Add(magnitude, odd), hn::Set(i, 0xfff - (112 << 23))));
  auto half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(i, 0x38800000)),
                             subnormal, normal);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(i, 0x477fefff)),
                        hn::Set(i, 0x7c00), half);
  half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(i, 0x7f800000)),
                        hn::Set(i, 0x7e00), half);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(i, 0x8000));
  return hn::DemoteTo(hn::Rebind<uint16_t, D>(), hn::Or(sign, half));
}

#endif

}  // namespace float16
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_BASE_DTYPE_FLOAT16_INL_H_
