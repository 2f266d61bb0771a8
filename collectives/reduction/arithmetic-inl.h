// Vector arithmetic for kernels-inl.h: folds, and the final division. Compiled
// once per instruction set. All instruction sets must produce the same bits, so
// products and sums are separate instructions.
#if defined(TESSERA_COLLECTIVES_REDUCTION_ARITHMETIC_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COLLECTIVES_REDUCTION_ARITHMETIC_INL_H_
#undef TESSERA_COLLECTIVES_REDUCTION_ARITHMETIC_INL_H_
#else
#define TESSERA_COLLECTIVES_REDUCTION_ARITHMETIC_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "collectives/reduction/combine_job.h"
#include "collectives/reduction/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::collectives::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class V>
using LaneOf = hn::TFromD<hn::DFromV<V>>;

// Modulo 2^bits for integers.
template <class V>
HWY_INLINE V Multiply(V a, V b) {
  if constexpr (sizeof(LaneOf<V>) > 1) {
    return hn::Mul(a, b);
  } else {
    const hn::DFromV<V> d;
#if HWY_TARGET == HWY_SCALAR
    const auto product = static_cast<uint32_t>(hn::GetLane(a)) *
                         static_cast<uint32_t>(hn::GetLane(b));
    return hn::Set(d, static_cast<LaneOf<V>>(product));
#else
    // The low byte of a product depends only on the low bytes of its factors.
    const hn::Repartition<uint16_t, decltype(d)> wide;
    const auto a16 = hn::BitCast(wide, a), b16 = hn::BitCast(wide, b);
    const auto low = hn::Mul(a16, b16);
    const auto high = hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16));
    return hn::BitCast(
        d, hn::Or(hn::And(low, hn::Set(wide, 0xff)), hn::ShiftLeft<8>(high)));
#endif
  }
}

// The smaller (larger) of two values; the later one of equals; NaN if one is
// NaN.
template <class V>
HWY_INLINE V Smaller(V a, V b) {
  if constexpr (std::is_floating_point_v<LaneOf<V>>) {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
  } else {
    return hn::Min(a, b);
  }
}
template <class V>
HWY_INLINE V Larger(V a, V b) {
  if constexpr (std::is_floating_point_v<LaneOf<V>>) {
    return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
  } else {
    return hn::Max(a, b);
  }
}

template <Fold fold, class V>
HWY_INLINE V Apply(V a, V b) {
  if constexpr (fold == Fold::kAdd) return hn::Add(a, b);
  if constexpr (fold == Fold::kMultiply) return Multiply(a, b);
  if constexpr (fold == Fold::kMin) return Smaller(a, b);
  if constexpr (fold == Fold::kMax) return Larger(a, b);
  if constexpr (fold == Fold::kAnd) return hn::And(a, b);
  if constexpr (fold == Fold::kOr) return hn::Or(a, b);
  if constexpr (fold == Fold::kXor) return hn::Xor(a, b);
}

// Final step on folded values before they are stored, for any divisor
// (kGeneral) or for those with IsPlain.
template <class D, bool kGeneral,
          bool kFloat = std::is_floating_point_v<hn::TFromD<D>>>
class Finish;

// True if multiplying by 1 / divisor gives the bits of the quotient.
constexpr bool HasExactReciprocal(int64_t divisor) {
  return (divisor & (divisor - 1)) == 0;
}

// Floating point. NaN results are canonicalised, because the compiler chooses
// which operand's payload survives an addition.
template <class D, bool kGeneral>
class Finish<D, kGeneral, true> {
 public:
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;

  HWY_INLINE explicit Finish(int64_t divisor)
      : divides_(divisor != 1),
        exact_(HasExactReciprocal(divisor)),
        factor_(hn::Set(D(), exact_ ? T{1} / static_cast<T>(divisor)
                                    : static_cast<T>(divisor))) {}

  HWY_INLINE V operator()(V x) const {
    if (divides_) {
      x = kGeneral && !exact_ ? hn::Div(x, factor_) : hn::Mul(x, factor_);
    }
    const auto nan = hn::Set(D(), std::numeric_limits<T>::quiet_NaN());
    return hn::IfThenElse(hn::IsNaN(x), nan, x);
  }

 private:
  bool divides_;
  bool exact_;
  V factor_;
};

// Integers divide towards zero. Quotients of narrow types are exact in a
// floating-point type of twice the width, whose vector division is faster.
template <class D, bool kGeneral>
class Finish<D, kGeneral, false> {
 public:
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;

  HWY_INLINE explicit Finish(int64_t divisor) : divisor_(divisor) {}

  HWY_INLINE V operator()(V x) const {
    if (!kGeneral || divisor_ == 1) return x;
    HWY_ALIGN T lanes[hn::MaxLanes(D())];
    hn::Store(x, D(), lanes);
    if constexpr (sizeof(T) == 8) {
      for (T& lane : lanes) lane /= static_cast<T>(divisor_);
    } else {
      using Quotient = std::conditional_t<sizeof(T) == 1, float, double>;
      const auto divisor = static_cast<Quotient>(divisor_);
      for (T& lane : lanes) {
        lane = static_cast<T>(
            static_cast<int32_t>(static_cast<Quotient>(lane) / divisor));
      }
    }
    return hn::Load(D(), lanes);
  }

 private:
  int64_t divisor_;
};

// True if Finish<D, false> suffices for the job.
template <class D>
HWY_INLINE bool IsPlain(const CombineJob& job) {
  if (job.scale != 1.0) return false;
  if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
    return HasExactReciprocal(job.divisor);
  } else {
    return job.divisor == 1;
  }
}

#if HWY_TARGET != HWY_SCALAR
// The same for both halves of a Pair.
template <class V>
HWY_INLINE Pair<V> Multiply(Pair<V> a, V b) {
  return {Multiply(a.even, b), Multiply(a.odd, b)};
}
template <Fold fold, class V>
HWY_INLINE Pair<V> Apply(Pair<V> a, Pair<V> b) {
  return {Apply<fold>(a.even, b.even), Apply<fold>(a.odd, b.odd)};
}
template <class F, class V>
HWY_INLINE Pair<V> Finished(const F& finish, Pair<V> x) {
  return {finish(x.even), finish(x.odd)};
}
#endif
template <class F, class V>
HWY_INLINE V Finished(const F& finish, V x) {
  return finish(x);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::collectives::internal
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COLLECTIVES_REDUCTION_ARITHMETIC_INL_H_
