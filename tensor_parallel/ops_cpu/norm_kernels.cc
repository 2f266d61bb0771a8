#include <cmath>

#include "tensor_parallel/ops_cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor_parallel/ops_cpu/norm_kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/block-inl.h"
#include "tensor_parallel/ops_cpu/columns-inl.h"
#include "tensor_parallel/ops_cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {

// The mean of nothing is zero.
template <typename S>
HWY_INLINE S Count(int64_t n) {
  return static_cast<S>(HWY_MAX(n, 1));
}

template <typename T>
struct Plain {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t j, int64_t left) const {
    return Load(x + j, left);
  }
  const T* x;
};

// (x - mean)^2.
template <typename T, bool kCentred>
struct Square {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t j, int64_t left) const {
    Block<StatisticOf<T>> value = Load(x + j, left);
    if constexpr (kCentred) {
      value = First(value - centre, left, StatisticOf<T>{0});
    }
    return value * value;
  }
  const T* x;
  Block<StatisticOf<T>> centre;
};

template <typename T, bool kCentred>
void ForwardRow(const NormJob& job, int64_t i) {
  using S = StatisticOf<T>;
  const T* const x = job.x.row<T>(i);
  S mean{0};
  if constexpr (kCentred) {
    mean = SumOf<T>(Plain<T>{x}, job.n) / Count<S>(job.n);
    job.mean.row<S>(0)[i] = mean;
  }
  const Square<T, kCentred> squares{x, SetBlock(mean)};
  const S square = SumOf<T>(squares, job.n) / Count<S>(job.n);
  const S inverse = S{1} / std::sqrt(square + static_cast<S>(job.epsilon));
  job.inverse.row<S>(0)[i] = inverse;

  const T* const weight = job.weight.row<T>(0);
  const T* const bias = job.bias.row<T>(0);
  T* const y = job.y.row<T>(i);
  const Block<S> centre = SetBlock(mean), factor = SetBlock(inverse);
  for (int64_t j = 0; j < job.n; j += kBlock<T>) {
    const int64_t left = job.n - j;
    Block<S> value = Load(x + j, left);
    if constexpr (kCentred) value = value - centre;
    value = value * factor * Load(weight + j, left);
    if constexpr (kCentred) value = value + Load(bias + j, left);
    Store(value, y + j, left);
  }
}

// (x - mean) * inverse of a row, and the gradient of that.
template <typename T, bool kCentred>
class NormalisedRow {
 public:
  using S = StatisticOf<T>;

  HWY_INLINE NormalisedRow(const NormJob& job, int64_t i)
      : x_(job.x.row<T>(i)),
        gradient_(job.gradient.row<T>(i)),
        weight_(job.weight.row<T>(0)),
        centre_(SetBlock(kCentred ? job.mean.row<S>(0)[i] : S{0})),
        factor_(SetBlock(job.inverse.row<S>(0)[i])) {}

  HWY_INLINE Block<S> Value(int64_t j, int64_t left) const {
    Block<S> value = Load(x_ + j, left);
    if constexpr (kCentred) value = value - centre_;
    return value * factor_;
  }
  // Zeros beyond the end.
  HWY_INLINE Block<S> Gradient(int64_t j, int64_t left) const {
    return Load(gradient_ + j, left) * Load(weight_ + j, left);
  }
  HWY_INLINE Block<S> WeightGradient(int64_t j, int64_t left) const {
    return Load(gradient_ + j, left) * Value(j, left);
  }
  HWY_INLINE const Block<S>& factor() const { return factor_; }

 private:
  const T* x_;
  const T* gradient_;
  const T* weight_;
  Block<S> centre_;
  Block<S> factor_;
};

template <typename T, bool kCentred>
struct GradientTerm {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t j, int64_t left) const {
    return row.Gradient(j, left);
  }
  const NormalisedRow<T, kCentred>& row;
};
template <typename T, bool kCentred>
struct ProductTerm {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t j, int64_t left) const {
    return row.Gradient(j, left) * row.Value(j, left);
  }
  const NormalisedRow<T, kCentred>& row;
};

// With v the normalised row and g its gradient:
// (g - mean(g) - v mean(g v)) * inverse, without mean(g) where not centred.
template <typename T, bool kCentred>
void InputGradientRow(const NormJob& job, int64_t i) {
  using S = StatisticOf<T>;
  const NormalisedRow<T, kCentred> row(job, i);
  const S n = Count<S>(job.n);
  const Block<S> mean = SetBlock(
      kCentred ? SumOf<T>(GradientTerm<T, kCentred>{row}, job.n) / n : S{0});
  const Block<S> share =
      SetBlock(SumOf<T>(ProductTerm<T, kCentred>{row}, job.n) / n);
  T* const y = job.y.row<T>(i);
  for (int64_t j = 0; j < job.n; j += kBlock<T>) {
    const int64_t left = job.n - j;
    Block<S> value = row.Gradient(j, left) - row.Value(j, left) * share;
    if constexpr (kCentred) value = value - mean;
    Store(value * row.factor(), y + j, left);
  }
}

template <typename T, bool kCentred>
struct WeightTerm {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t i, int64_t at,
                                              int64_t left) const {
    return NormalisedRow<T, kCentred>(job, i).WeightGradient(at, left);
  }
  const NormJob& job;
};

template <typename T, bool kCentred>
void RunNormAs(const NormJob& job) {
  if (job.step == NormJob::Step::kWeightGradient) {
    const WeightTerm<T, kCentred> term{job};
    if (job.target_type == job.dtype) {
      AddColumns(term, job.rows, job.n, job.y.row<T>(0));
    } else {
      AddColumns(term, job.rows, job.n, job.y.row<StatisticOf<T>>(0));
    }
    return;
  }
  for (int64_t i = 0; i < job.rows; ++i) {
    if (job.step == NormJob::Step::kForward) {
      ForwardRow<T, kCentred>(job, i);
    } else {
      InputGradientRow<T, kCentred>(job, i);
    }
  }
}

template <typename T>
void RunNormOf(const NormJob& job) {
  job.centred ? RunNormAs<T, true>(job) : RunNormAs<T, false>(job);
}

void RunNormHere(const NormJob& job) {
  if (job.dtype == DType::kF64) return RunNormOf<double>(job);
  if (job.dtype == DType::kF32) return RunNormOf<float>(job);
  return RunNormOf<BF16>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel::cpu {

HWY_EXPORT(RunNormHere);

void RunNorm(const NormJob& job) { HWY_DYNAMIC_DISPATCH(RunNormHere)(job); }

}  // namespace tessera::tensor_parallel::cpu
#endif  // HWY_ONCE
