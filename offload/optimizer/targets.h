// The instruction sets that kernels are compiled for; include it before
// hwy/foreach_target.h. Vector sizes must be known at compile time, which
// excludes SVE and RVV. SSSE3 without SSE4 is obsolete, and the kernels use
// nothing of AVX3_DL.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_TARGETS_H_
#define TESSERA_OFFLOAD_OPTIMIZER_TARGETS_H_

#define HWY_DISABLED_TARGETS                                                   \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV)

#endif  // TESSERA_OFFLOAD_OPTIMIZER_TARGETS_H_
