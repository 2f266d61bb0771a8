#include "tensor_parallel/ops_cpu/testing/vector_probe.h"

#include "base/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor_parallel/ops_cpu/testing/vector_probe.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/highway.h"
#include "tensor_parallel/ops_cpu/block-inl.h"
#include "tensor_parallel/ops_cpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::tensor_parallel::cpu {
namespace HWY_NAMESPACE {

template <typename T, typename S = StatisticOf<T>>
HWY_INLINE void ExpAll(const S* x, S* y, int64_t count) {
  for (int64_t j = 0; j < count; j += kBlock<S>) {
    Store(ExpFor<T>(Load(x + j, count - j)), y + j, count - j);
  }
}
void ExpF32(const float* x, float* y, int64_t count) {
  ExpAll<float>(x, y, count);
}
void ExpF64(const double* x, double* y, int64_t count) {
  ExpAll<double>(x, y, count);
}
void ExpBF16(const float* x, float* y, int64_t count) {
  ExpAll<BF16>(x, y, count);
}

template <typename From, typename To>
HWY_INLINE void CopyAll(const From* x, To* y, int64_t count) {
  for (int64_t j = 0; j < count; j += kBlock<float>) {
    Store(Load(x + j, count - j), y + j, count - j);
  }
}
void RoundBF16(const float* x, BF16* y, int64_t count) { CopyAll(x, y, count); }
void RoundF16(const float* x, F16* y, int64_t count) { CopyAll(x, y, count); }
void WidenBF16(const BF16* x, float* y, int64_t count) { CopyAll(x, y, count); }
void WidenF16(const F16* x, float* y, int64_t count) { CopyAll(x, y, count); }

BlockSummary Summarise(const float* x, int64_t count) {
  const Block<float> block = Load(x, count);
  return {Sum(block), Largest(First(block, count, x[0]))};
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::tensor_parallel::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::tensor_parallel::cpu {

HWY_EXPORT(ExpF32);
HWY_EXPORT(ExpF64);
HWY_EXPORT(ExpBF16);
HWY_EXPORT(RoundBF16);
HWY_EXPORT(RoundF16);
HWY_EXPORT(WidenBF16);
HWY_EXPORT(WidenF16);
HWY_EXPORT(Summarise);

template <>
void ProbeExp<float>(const float* x, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(ExpF32)(x, y, count);
}
template <>
void ProbeExp<double>(const double* x, double* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(ExpF64)(x, y, count);
}
template <>
void ProbeExp<BF16>(const float* x, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(ExpBF16)(x, y, count);
}
void ProbeRound(const float* x, BF16* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(RoundBF16)(x, y, count);
}
void ProbeRound(const float* x, F16* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(RoundF16)(x, y, count);
}
void ProbeWiden(const BF16* x, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(WidenBF16)(x, y, count);
}
void ProbeWiden(const F16* x, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(WidenF16)(x, y, count);
}
BlockSummary ProbeBlock(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(Summarise)(x, count);
}

}  // namespace tessera::tensor_parallel::cpu
#endif  // HWY_ONCE
