// Exp of a block, with an error of at most 1.5 units in the last place for f32
// and 2 for f64; exact at 0, with correct infinities, NaNs and subnormal
// results. ExpFor<T> is the same, but uses half the operations for results of
// bf16. The bits are the same on every instruction set.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, where ln 2 is in two parts (Cody and
// Waite, Software Manual for the Elementary Functions, chapter 6), exp(r) by
// its series, and 2^n in two factors, so that each is a normal number.
#if defined(TESSERA_TENSOR_PARALLEL_OPS_CPU_EXP_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_TENSOR_PARALLEL_OPS_CPU_EXP_INL_H_
#undef TESSERA_TENSOR_PARALLEL_OPS_CPU_EXP_INL_H_
#else
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_EXP_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype/small_float.h"
#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename S>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  using Integer = int32_t;
  static constexpr int kMantissaBits = 23;
  static constexpr Integer kBias = 127;
  static constexpr float kLowest = -104, kHighest = 89;  // 0 and infinity.
  // Integers that are added to this number appear in its last bits.
  static constexpr float kMagic = 0x1.8p23f;
  // The first part has so few bits that n times it is exact.
  static constexpr float kLn2High = 0x1.62e4p-1f;
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
};
template <>
struct ExpConstants<double> {
  using Integer = int64_t;
  static constexpr int kMantissaBits = 52;
  static constexpr Integer kBias = 1023;
  static constexpr double kLowest = -746, kHighest = 710;
  static constexpr double kMagic = 0x1.8p52;
  static constexpr double kLn2High = 0x1.62e42fefa38p-1;
  static constexpr double kLn2Low = 0x1.ef35793c7673p-45;
};

// (exp(r) - 1 - r) / r^2 = 1/2! + r/3! + r^2/4! + ..., evaluated by pairs and
// pairs of pairs, which have shorter dependency chains than Horner's scheme.
template <class D, class V>
HWY_INLINE V ExpTail(D d, V r, V r2, float) {
  const auto p0 =
      hn::Add(hn::Set(d, 1.0f / 2), hn::Mul(r, hn::Set(d, 1.0f / 6)));
  const auto p1 =
      hn::Add(hn::Set(d, 1.0f / 24), hn::Mul(r, hn::Set(d, 1.0f / 120)));
  const auto p2 =
      hn::Add(hn::Set(d, 1.0f / 720), hn::Mul(r, hn::Set(d, 1.0f / 5040)));
  return hn::Add(p0, hn::Mul(r2, hn::Add(p1, hn::Mul(r2, p2))));
}
template <class D, class V>
HWY_INLINE V ExpTail(D d, V r, V r2, double) {
  const auto p0 = hn::Add(hn::Set(d, 1.0 / 2), hn::Mul(r, hn::Set(d, 1.0 / 6)));
  const auto p1 =
      hn::Add(hn::Set(d, 1.0 / 24), hn::Mul(r, hn::Set(d, 1.0 / 120)));
  const auto p2 =
      hn::Add(hn::Set(d, 1.0 / 720), hn::Mul(r, hn::Set(d, 1.0 / 5040)));
  const auto p3 =
      hn::Add(hn::Set(d, 1.0 / 40320), hn::Mul(r, hn::Set(d, 1.0 / 362880)));
  const auto p4 = hn::Add(hn::Set(d, 1.0 / 3628800),
                          hn::Mul(r, hn::Set(d, 1.0 / 39916800)));
  const auto p5 = hn::Add(hn::Set(d, 1.0 / 479001600),
                          hn::Mul(r, hn::Set(d, 1.0 / 6227020800)));
  const auto r4 = hn::Mul(r2, r2);
  const auto low = hn::Add(p0, hn::Mul(r2, p1));
  const auto middle = hn::Add(p2, hn::Mul(r2, p3));
  const auto high = hn::Add(p4, hn::Mul(r2, p5));
  return hn::Add(low, hn::Mul(r4, hn::Add(middle, hn::Mul(r4, high))));
}

template <class D, class V>
HWY_INLINE V ExpVector(D d, V x) {
  using S = hn::TFromD<D>;
  using C = ExpConstants<S>;
  const hn::Rebind<typename C::Integer, D> integer;
  const auto lowest = hn::Set(d, C::kLowest), highest = hn::Set(d, C::kHighest);
  x = hn::IfThenElse(hn::Lt(x, lowest), lowest, x);  // NaN stays.
  x = hn::IfThenElse(hn::Gt(x, highest), highest, x);
  const auto magic = hn::Set(d, C::kMagic);
  const auto shifted = hn::Add(
      hn::Mul(x, hn::Set(d, static_cast<S>(1.4426950408889634))), magic);
  const auto n = hn::Sub(shifted, magic);
  const auto r = hn::Sub(hn::Sub(x, hn::Mul(n, hn::Set(d, C::kLn2High))),
                         hn::Mul(n, hn::Set(d, C::kLn2Low)));
  const auto r2 = hn::Mul(r, r);
  const auto e = hn::Add(hn::Set(d, S{1}),
                         hn::Add(r, hn::Mul(r2, ExpTail(d, r, r2, S{}))));
  // n as an integer, and half of it.
  const auto half = hn::Add(hn::Mul(n, hn::Set(d, S{0.5})), magic);
  const auto zero = hn::BitCast(integer, magic);
  const auto n1 = hn::Sub(hn::BitCast(integer, half), zero);
  const auto n2 = hn::Sub(hn::Sub(hn::BitCast(integer, shifted), zero), n1);
  const auto bias = hn::Set(integer, C::kBias);
  const auto f1 =
      hn::BitCast(d, hn::ShiftLeft<C::kMantissaBits>(hn::Add(n1, bias)));
  const auto f2 =
      hn::BitCast(d, hn::ShiftLeft<C::kMantissaBits>(hn::Add(n2, bias)));
  return hn::Mul(hn::Mul(e, f1), f2);
}

template <typename S>
HWY_INLINE Block<S> Exp(const Block<S>& x) {
  Block<S> result;
  for (size_t i = 0; i < Block<S>::kParts; ++i) {
    result.part[i] = ExpVector(typename Block<S>::Tag(), x.part[i]);
  }
  return result;
}

// exp(x) within 2^-17 of itself for |x| < 30 and 2^-16 beyond; 0 below -87.7,
// infinity above 88.3, exact at 0. exp(x) = 2^n 2^f with |f| <= 1/2, and 2^f by
// a polynomial of the least relative error (2^-18.4).
template <class D, class V>
HWY_INLINE V ShortExpVector(D d, V x) {
  const hn::Rebind<int32_t, D> integer;
  const auto lowest = hn::Set(d, -127.0f), highest = hn::Set(d, 128.0f);
  auto y = hn::Mul(x, hn::Set(d, 1.44269504f));
  y = hn::IfThenElse(hn::Lt(y, lowest), lowest, y);  // NaN stays.
  y = hn::IfThenElse(hn::Gt(y, highest), highest, y);
  // The last bits of the sum are n plus the bias of exponents.
  const auto magic = hn::Set(d, 0x1.8p23f + 127);
  const auto shifted = hn::Add(y, magic);
  const auto f = hn::Sub(y, hn::Sub(shifted, magic));
  const auto f2 = hn::Mul(f, f);
  const auto low =
      hn::Add(hn::Set(d, 1.0f), hn::Mul(f, hn::Set(d, 0x1.62e12cp-1f)));
  const auto middle = hn::Add(hn::Set(d, 0x1.ec0378p-3f),
                              hn::Mul(f, hn::Set(d, 0x1.c9fc46p-5f)));
  const auto high = hn::Mul(f2, hn::Set(d, 0x1.3a02ccp-7f));
  const auto e = hn::Add(low, hn::Mul(f2, hn::Add(middle, high)));
  return hn::Mul(
      e, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(integer, shifted))));
}

// Exp whose result is rounded to T, or multiplied by values of T.
template <typename T, typename S = StatisticOf<T>>
HWY_INLINE Block<S> ExpFor(const Block<S>& x) {
  if constexpr (std::is_same_v<T, BF16>) {
    Block<S> result;
    for (size_t i = 0; i < Block<S>::kParts; ++i) {
      result.part[i] = ShortExpVector(typename Block<S>::Tag(), x.part[i]);
    }
    return result;
  } else {
    return Exp(x);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_EXP_INL_H_
