#include "base/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor_parallel/ops_cpu/rotary_kernels.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/block-inl.h"
#include "tensor_parallel/ops_cpu/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {

template <typename T>
void RunRotaryOf(const RotaryJob& job) {
  using S = StatisticOf<T>;
  const int64_t half = job.pairs;
  const S* const cosines = static_cast<const S*>(job.table);
  const S* const sines = cosines + half;
  const Block<S> sign = SetBlock(job.inverse ? S{-1} : S{1});
  for (int64_t head = 0; head < job.heads; ++head) {
    T* const first = job.x.row<T>(head);
    T* const second = first + half;
    ForEachBlock<T>(half, [&](int64_t j, auto left) HWY_ATTR {
      const Block<S> cosine = Load(cosines + j, left);
      const Block<S> sine = sign * Load(sines + j, left);
      const Block<S> a = Load(first + j, left), b = Load(second + j, left);
      Store(a * cosine - b * sine, first + j, left);
      Store(b * cosine + a * sine, second + j, left);
    });
  }
}

void RunRotaryHere(const RotaryJob& job) {
  if (job.dtype == DType::kF64) return RunRotaryOf<double>(job);
  if (job.dtype == DType::kF32) return RunRotaryOf<float>(job);
  if (job.dtype == DType::kF16) return RunRotaryOf<F16>(job);
  return RunRotaryOf<BF16>(job);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel::cpu {

HWY_EXPORT(RunRotaryHere);

void RunRotary(const RotaryJob& job) {
  HWY_DYNAMIC_DISPATCH(RunRotaryHere)(job);
}

}  // namespace tessera::tensor_parallel::cpu
#endif  // HWY_ONCE
