// Disables targets whose vector size is unknown at compile time, because
// vectors are class members here, and SSSE3, because processors with SSSE3 but
// without SSE4 are obsolete.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduction/combine_floats.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "collectives/reduction/combine_job.h"
#include "collectives/reduction/kernels-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::collectives::internal {
namespace HWY_NAMESPACE {

void RunFloats(const CombineJob& job) {
  switch (job.dtype) {
    case DType::kF64:
      return RunBest<PlainLanes<double>>(job);
    case DType::kF32:
      return RunBest<PlainLanes<float>>(job);
    case DType::kF16:
      return RunBest<F16Lanes>(job);
    case DType::kBF16:
      return RunBest<Bf16Lanes>(job);
    default:
      return;  // Rejected earlier.
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::collectives::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::collectives::internal {

HWY_EXPORT(RunFloats);

void CombineFloats(const CombineJob& job) {
  HWY_DYNAMIC_DISPATCH(RunFloats)(job);
}

}  // namespace tessera::collectives::internal
#endif  // HWY_ONCE
