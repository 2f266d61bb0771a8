#include "base/highway_targets.h"
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

// Gates and factors without limits.
template <typename S>
struct Unclamped {
  HWY_INLINE Block<S> Gate(const Block<S>& g) const { return g; }
  HWY_INLINE Block<S> Factor(const Block<S>& u) const { return u; }
  HWY_INLINE Block<S> GateGradient(const Block<S>&, const Block<S>& d) const {
    return d;
  }
  HWY_INLINE Block<S> UpGradient(const Block<S>&, const Block<S>& d) const {
    return d;
  }
};

// h of glu.h, and its derivative, for a gate from Gate(); Factor(up) multiplies
// the activation. GateGradient and UpGradient are the gradients of the operands
// from those of Gate and Factor.
template <typename S>
struct SiluGate : Unclamped<S> {
  HWY_INLINE Block<S> Of(const Block<S>& g) const { return g; }
  HWY_INLINE Block<S> Slope(const Block<S>&) const { return SetBlock(S{1}); }
};

template <typename S>
struct GeluGate : Unclamped<S> {
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

template <typename S>
struct ClampedGate {
  HWY_INLINE Block<S> Of(const Block<S>& g) const {
    return SetBlock(static_cast<S>(clamped_glu::kGain)) * g;
  }
  HWY_INLINE Block<S> Slope(const Block<S>&) const {
    return SetBlock(static_cast<S>(clamped_glu::kGain));
  }
  HWY_INLINE Block<S> Gate(const Block<S>& g) const {
    const auto zero = SetBlock(S{0});
    return zero - Larger(zero - g, zero - Limit());
  }
  HWY_INLINE Block<S> Factor(const Block<S>& u) const {
    return Larger(Gate(u), SetBlock(S{0}) - Limit()) + SetBlock(S{1});
  }
  HWY_INLINE Block<S> GateGradient(const Block<S>& g, const Block<S>& d) const {
    return IfAtMost(g, Limit(), d);
  }
  HWY_INLINE Block<S> UpGradient(const Block<S>& u, const Block<S>& d) const {
    return IfAtMost(SetBlock(S{0}) - u, Limit(), IfAtMost(u, Limit(), d));
  }

 private:
  HWY_INLINE Block<S> Limit() const {
    return SetBlock(static_cast<S>(clamped_glu::kLimit));
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
    const auto g = h.Gate(Load(gate + j, left));
    const auto u = h.Factor(Load(up + j, left));
    Store(g / OnePlusExp<T>(h.Of(g)) * u, y + j, left);
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
    const auto given = Load(gate + j, left), up_given = Load(up + j, left);
    const auto g = h.Gate(given), u = h.Factor(up_given);
    const auto dy = Load(gradient + j, left);
    const auto s = one / OnePlusExp<T>(h.Of(g));
    const auto dg = dy * u * (s * (one + g * h.Slope(g) * (one - s)));
    Store(h.GateGradient(given, dg), gate_gradient + j, left);
    Store(h.UpGradient(up_given, dy * (g * s)), up_gradient + j, left);
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
  if (job.kind == GluKind::kClampedGlu) return RunRows<T, ClampedGate<S>>(job);
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
