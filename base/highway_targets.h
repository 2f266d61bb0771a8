// The instruction sets that kernels of Highway are compiled for; include it
// before hwy/foreach_target.h. Excludes targets whose vectors have no
// compile-time size; SSSE3, because all relevant processors have SSE4; and
// AVX3_DL, whose additional instructions are not used.
#ifndef TESSERA_BASE_HIGHWAY_TARGETS_H_
#define TESSERA_BASE_HIGHWAY_TARGETS_H_

#define HWY_DISABLED_TARGETS                                                   \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV)

#endif  // TESSERA_BASE_HIGHWAY_TARGETS_H_
