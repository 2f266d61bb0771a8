// Disables targets whose vector size is unknown at compile time, because
// vectors are class members here, and SSSE3, because processors with SSSE3 but
// without SSE4 are obsolete.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduction/combine_integers.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "collectives/reduction/combine_job.h"
#include "collectives/reduction/kernels-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::collectives::internal {
namespace HWY_NAMESPACE {

void RunIntegers(const CombineJob& job) {
  switch (job.dtype) {
    case DType::kI64:
      return RunBest<PlainLanes<int64_t>>(job);
    case DType::kI32:
      return RunBest<PlainLanes<int32_t>>(job);
    case DType::kI8:
      return RunBest<PlainLanes<int8_t>>(job);
    case DType::kU8:
      return RunBest<PlainLanes<uint8_t>>(job);
    default:
      return;  // Rejected earlier.
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::collectives::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::collectives::internal {

HWY_EXPORT(RunIntegers);

void CombineIntegers(const CombineJob& job) {
  HWY_DYNAMIC_DISPATCH(RunIntegers)(job);
}

}  // namespace tessera::collectives::internal
#endif  // HWY_ONCE
