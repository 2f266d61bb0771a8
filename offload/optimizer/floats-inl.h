// Loops over elements, and conversions between f32 and the 16-bit types bf16
// and f16. Compiled once for every instruction set.
#if defined(TESSERA_OFFLOAD_OPTIMIZER_FLOATS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_OFFLOAD_OPTIMIZER_FLOATS_INL_H_
#undef TESSERA_OFFLOAD_OPTIMIZER_FLOATS_INL_H_
#else
#define TESSERA_OFFLOAD_OPTIMIZER_FLOATS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/dtype/bfloat16-inl.h"
#include "base/dtype/float16-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of at most 64 bytes.
template <typename T>
using Full = hn::CappedTag<T, 64 / sizeof(T)>;
template <typename T>
using Single = hn::CappedTag<T, 1>;

// Calls body(d, i) for each full vector of S, which begins at element i, then
// for each remaining element. Accesses no byte beyond the elements.
template <typename S, class Body>
HWY_INLINE void ForEach(size_t count, const Body& body) {
  const Full<S> full;
  size_t i = 0;
  for (; i + hn::MaxLanes(full) <= count; i += hn::MaxLanes(full)) {
    body(full, i);
  }
  if constexpr (hn::MaxLanes(Full<S>()) > 1) {
    for (; i < count; ++i) body(Single<S>(), i);
  }
}

// Replaces every NaN by the same one, since the compiler chooses which
// operand's payload an operation returns.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Canonical(D d, V x) {
  using T = hn::TFromD<D>;
  const auto nan = hn::Set(d, std::numeric_limits<T>::quiet_NaN());
  return hn::IfThenElse(hn::IsNaN(x), nan, x);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadBF16(D d, const uint16_t* from) {
  return tessera::HWY_NAMESPACE::bfloat16::Widen(
      d, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
}

// Stores the upper halves of `bits`, which include a rounding term. NaN must be
// the canonical one.
template <class D, class V>
HWY_INLINE void StoreUpperHalf(D, V bits, uint16_t* to) {
  hn::StoreU(tessera::HWY_NAMESPACE::bfloat16::UpperHalf(bits),
             hn::Rebind<uint16_t, D>(), to);
}

// Rounds to nearest even. NaN must be the canonical one.
template <class D>
HWY_INLINE void StoreBF16(D d, hn::Vec<D> x, uint16_t* to) {
  const auto bits = hn::BitCast(hn::Rebind<uint32_t, D>(), x);
  StoreUpperHalf(d, tessera::HWY_NAMESPACE::bfloat16::RoundToUpperHalf(bits),
                 to);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadF16(D d, const uint16_t* from) {
  return tessera::HWY_NAMESPACE::float16::Widen(
      d, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
}
template <class D>
HWY_INLINE void StoreF16(D d, hn::Vec<D> x, uint16_t* to) {
  hn::StoreU(tessera::HWY_NAMESPACE::float16::Narrow(d, x),
             hn::Rebind<uint16_t, D>(), to);
}

// Converts `count` elements of bf16 or f16 to f32.
HWY_INLINE void Widen(bool is_bf16, const uint16_t* from, float* to,
                      size_t count) {
  if (is_bf16) {
    ForEach<float>(count, [=](auto d, size_t i) HWY_ATTR {
      hn::StoreU(LoadBF16(d, from + i), d, to + i);
    });
  } else {
    ForEach<float>(count, [=](auto d, size_t i) HWY_ATTR {
      hn::StoreU(LoadF16(d, from + i), d, to + i);
    });
  }
}

// Converts f32 to bf16 or f16, rounding to nearest even. NaN must be the
// canonical one.
HWY_INLINE void Narrow(bool is_bf16, const float* from, uint16_t* to,
                       size_t count) {
  if (is_bf16) {
    ForEach<float>(count, [=](auto d, size_t i) HWY_ATTR {
      StoreBF16(d, hn::LoadU(d, from + i), to + i);
    });
  } else {
    ForEach<float>(count, [=](auto d, size_t i) HWY_ATTR {
      StoreF16(d, hn::LoadU(d, from + i), to + i);
    });
  }
}

// hn::Iota would rebuild these, lane by lane, in every iteration.
alignas(64) inline constexpr uint32_t kLaneNumbers[16] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The source of the random bits of an element.
struct RandomBits {
  uint32_t key = 0;
  uint32_t index = 0;  // Index of the first element.
};

// Returns 32 random bits for each element from `i` on, determined by its index
// and the key: a multiply-xorshift hash ("lowbias32", C. Wellons, Prospecting
// for Hash Functions, 2018).
template <class D>
HWY_INLINE auto Hash(D, const RandomBits& bits, size_t i)
    -> hn::Vec<hn::Rebind<uint32_t, D>> {
  const hn::Rebind<uint32_t, D> u;
  const auto first = bits.index + static_cast<uint32_t>(i);
  auto x = hn::Xor(hn::Add(hn::LoadU(u, kLaneNumbers), hn::Set(u, first)),
                   hn::Set(u, bits.key));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(u, 0x7feb352du));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(u, 0x846ca68bu));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// Rounds to bf16 stochastically, so that the mean is exact: adds 16 random
// bits, the upper (kUpper) or lower half of the hash, below the kept bits.
template <bool kUpper>
HWY_INLINE void NarrowAtRandom(const float* from, uint16_t* to, size_t count,
                               const RandomBits& random) {
  ForEach<float>(count, [=](auto d, size_t i) HWY_ATTR {
    const hn::Rebind<uint32_t, decltype(d)> u;
    auto noise = Hash(d, random, i);
    noise =
        kUpper ? hn::ShiftRight<16>(noise) : hn::And(noise, hn::Set(u, 0xffff));
    const auto bits = hn::BitCast(u, hn::LoadU(d, from + i));
    StoreUpperHalf(d, hn::Add(bits, noise), to + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_OFFLOAD_OPTIMIZER_FLOATS_INL_H_
