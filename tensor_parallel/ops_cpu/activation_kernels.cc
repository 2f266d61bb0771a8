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

// 1 + exp(-x).
template <typename T, typename S = StatisticOf<T>>
HWY_INLINE Block<S> OnePlusExp(const Block<S>& x) {
  return SetBlock(S{1}) + ExpFor<T>(SetBlock(S{0}) - x);
}

template <typename T>
void ForwardRow(const SwiGluJob& job, int64_t i) {
  const T* const gate = job.gate.row<T>(i);
  const T* const up = job.up.row<T>(i);
  T* const y = job.y.row<T>(i);
  ForEachBlock<T>(job.n, [&](int64_t j, auto left) HWY_ATTR {
    const auto g = Load(gate + j, left);
    Store(g / OnePlusExp<T>(g) * Load(up + j, left), y + j, left);
  });
}

// With s = 1 / (1 + exp(-g)): the gradient of g s is s (1 + g (1 - s)).
template <typename T>
void BackwardRow(const SwiGluJob& job, int64_t i) {
  const T* const gate = job.gate.row<T>(i);
  const T* const up = job.up.row<T>(i);
  const T* const gradient = job.gradient.row<T>(i);
  T* const gate_gradient = job.gate_gradient.row<T>(i);
  T* const up_gradient = job.up_gradient.row<T>(i);
  const auto one = SetBlock(StatisticOf<T>{1});
  ForEachBlock<T>(job.n, [&](int64_t j, auto left) HWY_ATTR {
    const auto g = Load(gate + j, left);
    const auto u = Load(up + j, left);
    const auto dy = Load(gradient + j, left);
    const auto s = one / OnePlusExp<T>(g);
    Store(dy * u * (s * (one + g * (one - s))), gate_gradient + j, left);
    Store(dy * (g * s), up_gradient + j, left);
  });
}

template <typename T>
void RunSwiGluOf(const SwiGluJob& job) {
  for (int64_t i = job.rows.begin; i < job.rows.end; ++i) {
    job.backward ? BackwardRow<T>(job, i) : ForwardRow<T>(job, i);
  }
}

void RunSwiGluHere(const SwiGluJob& job) {
  if (job.dtype == DType::kF64) return RunSwiGluOf<double>(job);
  if (job.dtype == DType::kF32) return RunSwiGluOf<float>(job);
  if (job.dtype == DType::kF16) return RunSwiGluOf<F16>(job);
  return RunSwiGluOf<BF16>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel::cpu {

HWY_EXPORT(RunSwiGluHere);

void RunSwiGlu(const SwiGluJob& job) {
  HWY_DYNAMIC_DISPATCH(RunSwiGluHere)(job);
}

}  // namespace tessera::tensor_parallel::cpu
#endif  // HWY_ONCE
