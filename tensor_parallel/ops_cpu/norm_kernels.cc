#include <cmath>
#include <type_traits>

#include "base/highway_targets.h"
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

// The mean of an empty row is zero.
template <typename S>
HWY_INLINE S Count(int64_t n) {
  return static_cast<S>(HWY_MAX(n, 1));
}

template <typename T>
struct Square {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t j, int64_t left) const {
    const Block<StatisticOf<T>> value = Load(x + j, left);
    return value * value;
  }
  const T* x;
};

// Adds a block of the residual to x, and squares the rounded sum.
template <typename T>
struct AddAndSquare {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t j, int64_t left) const {
    Store(Load(x + j, left) + Load(residual + j, left), x + j, left);
    return Square<T>{x}(j, left);
  }
  const T* residual;
  T* x;
};

template <typename T>
HWY_INLINE StatisticOf<T> SquaresOf(const NormJob& job, int64_t i) {
  if (job.step == NormJob::Step::kForwardOf) {
    return job.sums.row<StatisticOf<T>>(0)[i];
  }
  if (job.step != NormJob::Step::kAddForward) {
    return SumOf<T>(Square<T>{job.x.row<T>(i)}, job.n);
  }
  return SumOf<T>(AddAndSquare<T>{job.residual.row<T>(i), job.sum.row<T>(i)},
                  job.n);
}

template <typename T>
void ForwardRow(const NormJob& job, int64_t i) {
  using S = StatisticOf<T>;
  const T* const x = job.x.row<T>(i);
  const S square = SquaresOf<T>(job, i) / Count<S>(job.width);
  const S inverse = S{1} / std::sqrt(square + static_cast<S>(job.epsilon));
  job.inverse.row<S>(0)[i] = inverse;

  const T* const weight = job.weight.row<T>(0);
  T* const y = job.y.row<T>(i);
  const Block<S> factor = SetBlock(inverse);
  ForEachBlock<T>(job.n, [&](int64_t j, auto left) HWY_ATTR {
    Store(Load(x + j, left) * factor * Load(weight + j, left), y + j, left);
  });
}

// x * inverse of a row, and the gradient of that.
template <typename T>
class NormalisedRow {
 public:
  using S = StatisticOf<T>;

  HWY_INLINE NormalisedRow(const NormJob& job, int64_t i)
      : x_(job.x.row<T>(i)),
        gradient_(job.gradient.row<T>(i)),
        weight_(job.weight.row<T>(0)),
        factor_(SetBlock(job.inverse.row<S>(0)[i])) {}

  HWY_INLINE Block<S> Value(int64_t j, int64_t left) const {
    return Load(x_ + j, left) * factor_;
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
  Block<S> factor_;
};

template <typename T>
struct ProductTerm {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t j, int64_t left) const {
    return row.Gradient(j, left) * row.Value(j, left);
  }
  const NormalisedRow<T>& row;
};

// The sum over the row of its normalised elements times their gradients.
template <typename T>
HWY_INLINE StatisticOf<T> GradientSumOf(const NormJob& job, int64_t i) {
  return SumOf<T>(ProductTerm<T>{NormalisedRow<T>(job, i)}, job.n);
}

// With v the normalised row and g its gradient: (g - v mean(g v)) * inverse.
template <typename T, bool adds>
void InputGradientRow(const NormJob& job, int64_t i) {
  using S = StatisticOf<T>;
  const NormalisedRow<T> row(job, i);
  const S sum = job.step == NormJob::Step::kInputGradientOf
                    ? job.sums.row<S>(0)[i]
                    : GradientSumOf<T>(job, i);
  const Block<S> share = SetBlock(sum / Count<S>(job.width));
  T* const y = job.y.row<T>(i);
  ForEachBlock<T>(job.n, [&](int64_t j, auto left) HWY_ATTR {
    const Block<S> own =
        (row.Gradient(j, left) - row.Value(j, left) * share) * row.factor();
    if constexpr (!adds) {
      Store(own, y + j, left);
    } else if constexpr (std::is_same_v<T, S>) {
      Store(own + Load(job.residual.row<T>(i) + j, left), y + j, left);
    } else {
      // Rounds twice, as two operations do. y may be the residual.
      const Block<S> residual = Load(job.residual.row<T>(i) + j, left);
      Store(own, y + j, left);
      Store(Load(y + j, left) + residual, y + j, left);
    }
  });
}

template <typename T>
struct WeightTerm {
  HWY_INLINE Block<StatisticOf<T>> operator()(int64_t i, int64_t at,
                                              int64_t left) const {
    return NormalisedRow<T>(job, i).WeightGradient(at, left);
  }
  const NormJob& job;
};

template <typename T>
void RunNormOf(const NormJob& job) {
  if (job.step == NormJob::Step::kWeightGradient) {
    const WeightTerm<T> term{job};
    if (job.target_type == job.dtype) {
      AddColumns(term, job.rows, job.columns, job.y.row<T>(0));
    } else {
      AddColumns(term, job.rows, job.columns, job.y.row<StatisticOf<T>>(0));
    }
    return;
  }
  for (int64_t i = job.rows.begin; i < job.rows.end; ++i) {
    if (job.step == NormJob::Step::kSums) {
      job.sums.row<StatisticOf<T>>(0)[i] = SquaresOf<T>(job, i);
    } else if (job.step == NormJob::Step::kGradientSums) {
      job.sums.row<StatisticOf<T>>(0)[i] = GradientSumOf<T>(job, i);
    } else if (job.step == NormJob::Step::kInputGradient ||
               job.step == NormJob::Step::kInputGradientOf) {
      InputGradientRow<T, false>(job, i);
    } else if (job.step == NormJob::Step::kAddInputGradient) {
      InputGradientRow<T, true>(job, i);
    } else {
      ForwardRow<T>(job, i);
    }
  }
}

void RunNormHere(const NormJob& job) {
  if (job.dtype == DType::kF64) return RunNormOf<double>(job);
  if (job.dtype == DType::kF32) return RunNormOf<float>(job);
  if (job.dtype == DType::kF16) return RunNormOf<F16>(job);
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
