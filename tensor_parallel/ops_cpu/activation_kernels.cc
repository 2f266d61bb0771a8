#include "tensor_parallel/ops_cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor_parallel/ops_cpu/activation_kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/block-inl.h"
#include "tensor_parallel/ops_cpu/exp-inl.h"
#include "tensor_parallel/ops_cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {

// h of glu.h, and its derivative.
template <typename S>
struct SiluGate {
  HWY_INLINE Block<S> Of(const Block<S>& g) const { return g; }
  HWY_INLINE Block<S> Slope(const Block<S>&) const { return SetBlock(S{1}); }
};

template <typename S>
struct GeluGate {
  HWY_INLINE Block<S> Of(const Block<S>& g) const {
    const auto near = Near(g);
    return near * (SetBlock(static_cast<S>(gelu::kLinear)) +
                   SetBlock(static_cast<S>(gelu::kCubic)) * (near * near));
  }
  HWY_INLINE Block<S> Slope(const Block<S>& g) const {
    const auto near = Near(g);
    return SetBlock(static_cast<S>(gelu::kLinear)) +
           SetBlock(static_cast<S>(3 * gelu::kCubic)) * (near * near);
  }

 private:
  // Clamps to the interval outside of which h is constant.
  HWY_INLINE Block<S> Near(const Block<S>& g) const {
    const auto zero = SetBlock(S{0});
    const auto far = SetBlock(static_cast<S>(gelu::kFar));
    const auto least = Larger(g, zero - far);
    return zero - Larger(zero - least, zero - far);
  }
};

// 1 + exp(-x).
template <typename T, typename S = StatisticOf<T>>
HWY_INLINE Block<S> OnePlusExp(const Block<S>& x) {
  return SetBlock(S{1}) + ExpFor<T>(SetBlock(S{0}) - x);
}

template <typename T, typename Gate>
void ForwardRow(const GluJob& job, int64_t i) {
  const T* const gate = job.gate.row<T>(i);
  const T* const up = job.up.row<T>(i);
  T* const y = job.y.row<T>(i);
  const Gate h;
  ForEachBlock<T>(job.n, [&](int64_t j, auto left) HWY_ATTR {
    const auto g = Load(gate + j, left);
    Store(g / OnePlusExp<T>(h.Of(g)) * Load(up + j, left), y + j, left);
  });
}

// With s = 1 / (1 + exp(-h(g))): the gradient of g s is
// s (1 + g h'(g) (1 - s)).
template <typename T, typename Gate>
void BackwardRow(const GluJob& job, int64_t i) {
  const T* const gate = job.gate.row<T>(i);
  const T* const up = job.up.row<T>(i);
  const T* const gradient = job.gradient.row<T>(i);
  T* const gate_gradient = job.gate_gradient.row<T>(i);
  T* const up_gradient = job.up_gradient.row<T>(i);
  const auto one = SetBlock(StatisticOf<T>{1});
  const Gate h;
  ForEachBlock<T>(job.n, [&](int64_t j, auto left) HWY_ATTR {
    const auto g = Load(gate + j, left);
    const auto u = Load(up + j, left);
    const auto dy = Load(gradient + j, left);
    const auto s = one / OnePlusExp<T>(h.Of(g));
    Store(dy * u * (s * (one + g * h.Slope(g) * (one - s))), gate_gradient + j,
          left);
    Store(dy * (g * s), up_gradient + j, left);
  });
}

template <typename T, typename Gate>
void RunRows(const GluJob& job) {
  for (int64_t i = job.rows.begin; i < job.rows.end; ++i) {
    job.backward ? BackwardRow<T, Gate>(job, i) : ForwardRow<T, Gate>(job, i);
  }
}

template <typename T>
void RunGluOf(const GluJob& job) {
  using S = StatisticOf<T>;
  if (job.kind == GluKind::kGeGlu) return RunRows<T, GeluGate<S>>(job);
  RunRows<T, SiluGate<S>>(job);
}

void RunGluHere(const GluJob& job) {
  if (job.dtype == DType::kF64) return RunGluOf<double>(job);
  if (job.dtype == DType::kF32) return RunGluOf<float>(job);
  if (job.dtype == DType::kF16) return RunGluOf<F16>(job);
  return RunGluOf<BF16>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel::cpu {

HWY_EXPORT(RunGluHere);

void RunGlu(const GluJob& job) { HWY_DYNAMIC_DISPATCH(RunGluHere)(job); }

}  // namespace tessera::tensor_parallel::cpu
#endif  // HWY_ONCE
