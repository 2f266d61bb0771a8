#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/dtype/dtype.h"
#include "base/highway_targets.h"
#include "offload/optimizer/kernels.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optimizer/statistics_kernel.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "offload/optimizer/floats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {

constexpr auto kSums = static_cast<size_t>(kPartialSums);

// 32 sums of squares and, if kCareful, 32 counts of non-finite elements, in as
// many vectors as required. The careful version sums only finite elements; if
// all are finite, both results are bit-identical.
template <bool kCareful>
class Sums {
 public:
  using D = Full<double>;
  static constexpr size_t kLanes = hn::MaxLanes(D());
  static constexpr size_t kVectors = kSums / kLanes;

  Sums() {
    for (auto& square : squares_) square = hn::Zero(D());
    for (auto& count : counts_) count = hn::Zero(D());
  }

  // kSums elements.
  template <typename S>
  HWY_INLINE void Add(const S* from) {
    const D d;
    const auto most = hn::Set(d, Most<S>());
    for (size_t k = 0; k < kVectors; ++k) {
      auto x = Load(from + k * kLanes);
      if constexpr (kCareful) {
        const auto is_finite = hn::Le(hn::Abs(x), most);
        x = hn::IfThenElseZero(is_finite, x);
        counts_[k] =
            hn::Add(counts_[k], hn::IfThenZeroElse(is_finite, hn::Set(d, 1.0)));
      }
      squares_[k] = hn::Add(squares_[k], hn::Mul(x, x));
    }
  }

  RunStatistics Total() const {
    return {Tree(squares_), static_cast<int64_t>(Tree(counts_))};
  }

 private:
  using V = hn::Vec<D>;

  template <typename S>
  static constexpr double Most() {
    return static_cast<double>(std::numeric_limits<S>::max());
  }
  static HWY_INLINE V Load(const double* from) { return hn::LoadU(D(), from); }
  static HWY_INLINE V Load(const float* from) {
    const hn::Rebind<float, D> narrow;
    return hn::PromoteTo(D(), hn::LoadU(narrow, from));
  }
  static double Tree(const V* vectors) {
    double values[kSums];
    for (size_t k = 0; k < kVectors; ++k) {
      hn::StoreU(vectors[k], D(), values + k * kLanes);
    }
    for (size_t half = kSums / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) values[i] += values[i + half];
    }
    return values[0];
  }

  V squares_[kVectors];
  V counts_[kVectors];
};

template <class Total, typename S>
HWY_INLINE void AddAll(const S* from, size_t count, Total& total) {
  Total sums = total;  // In registers.
  size_t i = 0;
  for (; i + kSums <= count; i += kSums) sums.Add(from + i);
  if (i < count) {
    S last[kSums] = {};
    std::memcpy(last, from + i, (count - i) * sizeof(S));
    sums.Add(last);
  }
  total = sums;
}

template <class Total>
HWY_INLINE void AddNarrow(bool is_bf16, const uint16_t* from, size_t count,
                          Total& total) {
  constexpr size_t kWidened = 1024;
  alignas(64) float tile[kWidened];
  for (size_t at = 0; at < count; at += kWidened) {
    const size_t size = std::min(kWidened, count - at);
    Widen(is_bf16, from + at, tile, size);
    AddAll(tile, size, total);
  }
}

template <bool kCareful>
RunStatistics Measure(DType dtype, const std::byte* data, size_t count) {
  Sums<kCareful> sums;
  if (dtype == DType::kF64) {
    AddAll(reinterpret_cast<const double*>(data), count, sums);
  } else if (dtype == DType::kF32) {
    AddAll(reinterpret_cast<const float*>(data), count, sums);
  } else {
    AddNarrow(dtype == DType::kBF16, reinterpret_cast<const uint16_t*>(data),
              count, sums);
  }
  return sums.Total();
}

// A non-finite element makes the sum non-finite, so elements are counted only
// then. Squares of f64 may also overflow.
RunStatistics StatisticsHere(DType dtype, const std::byte* data,
                             int64_t count) {
  const auto size = static_cast<size_t>(count);
  const RunStatistics quick = Measure<false>(dtype, data, size);
  if (quick.sum_of_squares <= std::numeric_limits<double>::max()) return quick;
  return Measure<true>(dtype, data, size);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::offload {

HWY_EXPORT(StatisticsHere);

RunStatistics StatisticsOf(DType dtype, const std::byte* data, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(StatisticsHere)(dtype, data, count);
}

}  // namespace tessera::offload
#endif  // HWY_ONCE
