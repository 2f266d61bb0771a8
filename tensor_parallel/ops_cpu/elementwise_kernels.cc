#include "base/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor_parallel/ops_cpu/elementwise_kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/block-inl.h"
#include "tensor_parallel/ops_cpu/columns-inl.h"
#include "tensor_parallel/ops_cpu/exp-inl.h"
#include "tensor_parallel/ops_cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {

using Step = ElementwiseJob::Step;

template <typename X>
struct RowTerm {
  HWY_INLINE Block<StatisticOf<X>> operator()(int64_t i, int64_t at,
                                              int64_t count) const {
    return Load(x.row<X>(i) + at, count);
  }
  ConstRowsView x;
};

// Transforms a row block by block.
template <typename X, typename Y>
void ElementwiseRow(const ElementwiseJob& job, const X* x, Y* y) {
  using S = StatisticOf<Y>;
  const Block<S> factor = SetBlock(static_cast<S>(job.factor));
  if (job.step == Step::kScale) {
    ForEachBlock<Y>(job.n, [&](int64_t j, auto left) HWY_ATTR {
      Store(Load(y + j, left) * factor, y + j, left);
    });
  } else if (job.step == Step::kSoftCap) {
    // cap * tanh(z) = cap - 2 cap / (exp(2 z) + 1).
    const Block<S> cap = SetBlock(static_cast<S>(job.cap));
    const Block<S> twice = SetBlock(static_cast<S>(2 * job.factor / job.cap));
    const Block<S> one = SetBlock(S{1});
    ForEachBlock<Y>(job.n, [&](int64_t j, auto left) HWY_ATTR {
      const Block<S> e = Exp(Load(y + j, left) * twice) + one;
      Store(cap - (cap + cap) / e, y + j, left);
    });
  } else if (job.step == Step::kCast) {
    ForEachBlock<Y>(job.n, [&](int64_t j, auto left) HWY_ATTR {
      Store(Load(x + j, left), y + j, left);
    });
  } else {
    ForEachBlock<Y>(job.n, [&](int64_t j, auto left) HWY_ATTR {
      Store(Load(y + j, left) + Load(x + j, left), y + j, left);
    });
  }
}

template <typename X, typename Y>
void ScaleRow(StatisticOf<Y> scale, int64_t n, const X* x, Y* y) {
  const Block<StatisticOf<Y>> factor = SetBlock(scale);
  ForEachBlock<Y>(n, [&](int64_t j, auto left) HWY_ATTR {
    Store(Load(x + j, left) * factor, y + j, left);
  });
}

template <typename X, typename Z>
struct Product {
  HWY_INLINE Block<StatisticOf<X>> operator()(int64_t j, int64_t left) const {
    return Load(x + j, left) * Load(z + j, left);
  }
  const X* x;
  const Z* z;
};

template <typename X, typename Y>
void RunTyped(const ElementwiseJob& job) {
  if (job.step == Step::kSumRows) {
    AddColumns(RowTerm<X>{job.x}, job.rows, job.columns, job.y.row<Y>(0));
    return;
  }
  if (job.step == Step::kDots) {
    auto* dots = job.y.row<StatisticOf<X>>(0);
    for (int64_t i = job.rows.begin; i < job.rows.end; ++i) {
      dots[i] =
          SumOf<X>(Product<X, Y>{job.x.row<X>(i), job.z.row<Y>(i)}, job.n);
    }
    return;
  }
  if (job.step == Step::kScaleRows) {
    const auto* const scales = job.z.row<StatisticOf<Y>>(0);
    for (int64_t i = job.rows.begin; i < job.rows.end; ++i) {
      ScaleRow(scales[i], job.n, job.x.row<X>(i), job.y.row<Y>(i));
    }
    return;
  }
  for (int64_t i = job.rows.begin; i < job.rows.end; ++i) {
    ElementwiseRow(job, job.x.row<X>(job.step == Step::kAddToRows ? 0 : i),
                   job.y.row<Y>(i));
  }
}

// One of the types is `Narrow`.
template <typename Narrow>
void RunNarrow(const ElementwiseJob& job) {
  if (job.x_type == DType::kF32) return RunTyped<float, Narrow>(job);
  if (job.y_type == DType::kF32) return RunTyped<Narrow, float>(job);
  return RunTyped<Narrow, Narrow>(job);
}

void RunElementwiseHere(const ElementwiseJob& job) {
  const auto is = [&](DType dtype) {
    return job.x_type == dtype || job.y_type == dtype;
  };
  if (is(DType::kF64)) return RunTyped<double, double>(job);
  if (is(DType::kBF16)) return RunNarrow<BF16>(job);
  if (is(DType::kF16)) return RunNarrow<F16>(job);
  return RunTyped<float, float>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel::cpu {

HWY_EXPORT(RunElementwiseHere);

void RunElementwise(const ElementwiseJob& job) {
  HWY_DYNAMIC_DISPATCH(RunElementwiseHere)(job);
}

}  // namespace tessera::tensor_parallel::cpu
#endif  // HWY_ONCE
