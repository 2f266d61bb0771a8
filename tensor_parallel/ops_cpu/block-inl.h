// Block: 64 bytes of values, in as many vectors as the instruction set needs.
// Sums over blocks have the same bits on every instruction set, because each
// uses the same number of partial sums, added in the same order; products and
// sums are never fused.
//
// Compiled once for every instruction set. Elements of bf16 are loaded into
// blocks of f32. Load and Store take the number of valid elements: the others
// read as zero, and no byte beyond the valid elements is accessed.
#if defined(TESSERA_TENSOR_PARALLEL_OPS_CPU_BLOCK_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_TENSOR_PARALLEL_OPS_CPU_BLOCK_INL_H_
#undef TESSERA_TENSOR_PARALLEL_OPS_CPU_BLOCK_INL_H_
#else
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_BLOCK_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/dtype/bfloat16-inl.h"
#include "base/dtype/float16-inl.h"
#include "base/dtype/small_float.h"
#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The number of elements of type T in a block.
template <typename T>
inline constexpr int64_t kBlock = 64 / sizeof(StatisticOf<T>);

template <typename S>
struct Block {
  using Tag = hn::CappedTag<S, 64 / sizeof(S)>;
  using Vector = hn::Vec<Tag>;
  static constexpr size_t kStep = hn::MaxLanes(Tag());
  static constexpr size_t kParts = 64 / sizeof(S) / kStep;

  // An implicit constructor would be compiled for the baseline target.
  HWY_INLINE Block() {}

  Vector part[kParts];
};

template <typename S>
HWY_INLINE Block<S> SetBlock(S value) {
  Block<S> result;
  for (auto& part : result.part)
    part = hn::Set(typename Block<S>::Tag(), value);
  return result;
}

#define TESSERA_BLOCK_BINARY_(name, function)                      \
  template <typename S>                                            \
  HWY_INLINE Block<S> name(const Block<S>& a, const Block<S>& b) { \
    Block<S> result;                                               \
    for (size_t i = 0; i < Block<S>::kParts; ++i) {                \
      result.part[i] = function(a.part[i], b.part[i]);             \
    }                                                              \
    return result;                                                 \
  }
TESSERA_BLOCK_BINARY_(operator+, hn::Add)
TESSERA_BLOCK_BINARY_(operator-, hn::Sub)
TESSERA_BLOCK_BINARY_(operator*, hn::Mul)
TESSERA_BLOCK_BINARY_(operator/, hn::Div)
#undef TESSERA_BLOCK_BINARY_

// The larger value; NaN if either is NaN.
template <typename S>
HWY_INLINE Block<S> Larger(const Block<S>& a, const Block<S>& b) {
  Block<S> result;
  for (size_t i = 0; i < Block<S>::kParts; ++i) {
    const auto x = a.part[i], y = b.part[i];
    result.part[i] = hn::IfThenElse(hn::Or(hn::Gt(x, y), hn::IsNaN(x)), x, y);
  }
  return result;
}

// x where a <= b, otherwise 0.
template <typename S>
HWY_INLINE Block<S> IfAtMost(const Block<S>& a, const Block<S>& b,
                             const Block<S>& x) {
  Block<S> result;
  for (size_t i = 0; i < Block<S>::kParts; ++i) {
    result.part[i] =
        hn::IfThenElseZero(hn::Le(a.part[i], b.part[i]), x.part[i]);
  }
  return result;
}

template <typename S>
HWY_INLINE Block<S> LoadAll(const S* from) {
  Block<S> result;
  for (size_t i = 0; i < Block<S>::kParts; ++i) {
    result.part[i] =
        hn::LoadU(typename Block<S>::Tag(), from + i * Block<S>::kStep);
  }
  return result;
}
HWY_INLINE Block<float> LoadAll(const BF16* from) {
  using Tag = Block<float>::Tag;
  const hn::Rebind<uint16_t, Tag> narrow;
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  Block<float> result;
  for (size_t i = 0; i < Block<float>::kParts; ++i) {
    result.part[i] = tessera::HWY_NAMESPACE::bfloat16::Widen(
        Tag(), hn::LoadU(narrow, bits + i * Block<float>::kStep));
  }
  return result;
}

HWY_INLINE Block<float> LoadAll(const F16* from) {
  using Tag = Block<float>::Tag;
  const hn::Rebind<uint16_t, Tag> narrow;
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  Block<float> result;
  for (size_t i = 0; i < Block<float>::kParts; ++i) {
    result.part[i] = tessera::HWY_NAMESPACE::float16::Widen(
        Tag(), hn::LoadU(narrow, bits + i * Block<float>::kStep));
  }
  return result;
}

template <typename S>
HWY_INLINE void StoreAll(const Block<S>& block, S* to) {
  for (size_t i = 0; i < Block<S>::kParts; ++i) {
    hn::StoreU(block.part[i], typename Block<S>::Tag(),
               to + i * Block<S>::kStep);
  }
}
// Rounds to nearest even; a NaN stays a (quiet) NaN.
HWY_INLINE void StoreAll(const Block<float>& block, BF16* to) {
  using Tag = Block<float>::Tag;
  const hn::Rebind<uint16_t, Tag> narrow;
  auto* bits = reinterpret_cast<uint16_t*>(to);
  for (size_t i = 0; i < Block<float>::kParts; ++i) {
    hn::StoreU(tessera::HWY_NAMESPACE::bfloat16::Narrow(Tag(), block.part[i]),
               narrow, bits + i * Block<float>::kStep);
  }
}
HWY_INLINE void StoreAll(const Block<float>& block, F16* to) {
  using Tag = Block<float>::Tag;
  const hn::Rebind<uint16_t, Tag> narrow;
  auto* bits = reinterpret_cast<uint16_t*>(to);
  for (size_t i = 0; i < Block<float>::kParts; ++i) {
    hn::StoreU(tessera::HWY_NAMESPACE::float16::Narrow(Tag(), block.part[i]),
               narrow, bits + i * Block<float>::kStep);
  }
}

template <typename T>
HWY_NOINLINE Block<StatisticOf<T>> LoadSome(const T* from, int64_t count) {
  alignas(64) T elements[kBlock<T>] = {};
  std::memcpy(static_cast<void*>(elements), from,
              static_cast<size_t>(count) * sizeof(T));
  return LoadAll(elements);
}
template <typename T>
HWY_NOINLINE void StoreSome(const Block<StatisticOf<T>>& block, T* to,
                            int64_t count) {
  alignas(64) T elements[kBlock<T>];
  StoreAll(block, elements);
  std::memcpy(static_cast<void*>(to), elements,
              static_cast<size_t>(count) * sizeof(T));
}

// The first `count` elements, or a whole block if there are more.
template <typename T>
HWY_INLINE Block<StatisticOf<T>> Load(const T* from, int64_t count) {
  return HWY_LIKELY(count >= kBlock<T>) ? LoadAll(from) : LoadSome(from, count);
}
template <typename T>
HWY_INLINE void Store(const Block<StatisticOf<T>>& block, T* to,
                      int64_t count) {
  if (HWY_LIKELY(count >= kBlock<T>)) {
    StoreAll(block, to);
  } else {
    StoreSome(block, to, count);
  }
}

// The first `count` values of `block`, followed by the values of `other`.
template <typename S>
HWY_INLINE Block<S> First(const Block<S>& block, int64_t count, S other) {
  if (HWY_LIKELY(count >= kBlock<S>)) return block;
  alignas(64) S values[kBlock<S>];
  StoreAll(block, values);
  for (int64_t i = HWY_MAX(count, 0); i < kBlock<S>; ++i) values[i] = other;
  return LoadAll(values);
}

// Calls body(j, count) for the blocks of n elements of type T: `count` elements
// from j on are valid, a constant except for the last block.
template <typename T, class Body>
HWY_INLINE void ForEachBlock(int64_t n, const Body& body) {
  int64_t j = 0;
  for (; j + kBlock<T> <= n; j += kBlock<T>) {
    body(j, std::integral_constant<int64_t, kBlock<T>>());
  }
  if (j < n) body(j, n - j);
}

// The sum of the values of a block, added as a tree.
template <typename S>
HWY_INLINE S Sum(const Block<S>& block) {
  alignas(64) S values[kBlock<S>];
  StoreAll(block, values);
  for (int64_t half = kBlock<S> / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) values[i] += values[i + half];
  }
  return values[0];
}

// The sum of term(j, n - j) over the blocks from j on of n elements of type T,
// where term(j, left) is zero from index `left` on. Four independent sums hide
// latency.
template <typename T, class Term>
HWY_INLINE StatisticOf<T> SumOf(const Term& term, int64_t n) {
  using S = StatisticOf<T>;
  Block<S> a = SetBlock(S{0}), b = a, c = a, d = a;
  int64_t j = 0;
  for (; j + 4 * kBlock<T> <= n; j += 4 * kBlock<T>) {
    a = a + term(j, kBlock<T>);
    b = b + term(j + kBlock<T>, kBlock<T>);
    c = c + term(j + 2 * kBlock<T>, kBlock<T>);
    d = d + term(j + 3 * kBlock<T>, kBlock<T>);
  }
  for (; j < n; j += kBlock<T>) a = a + term(j, n - j);
  return Sum((a + b) + (c + d));
}

// The largest element; NaN if any element is NaN.
template <typename S>
HWY_INLINE S Largest(const Block<S>& block) {
  const typename Block<S>::Tag tag;
  auto largest = block.part[0];
  auto is_nan = hn::IsNaN(largest);
  for (size_t i = 1; i < Block<S>::kParts; ++i) {
    is_nan = hn::Or(is_nan, hn::IsNaN(block.part[i]));
    largest = hn::Max(largest, block.part[i]);
  }
  if (HWY_UNLIKELY(!hn::AllFalse(tag, is_nan))) {
    return std::numeric_limits<S>::quiet_NaN();
  }
  return hn::GetLane(hn::MaxOfLanes(tag, largest));
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_BLOCK_INL_H_
