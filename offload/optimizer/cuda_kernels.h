// The optimizer's kernels for GPUs, whose results are bit-identical to those of
// RunStep (kernels.h) and MeasureGradient.
//
// Memory-bound: every byte moves once, in accesses of 16 bytes if the addresses
// are aligned. AdamW on f32 with a bf16 copy moves 30 bytes per parameter, with
// 8-bit moments 18.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_CUDA_KERNELS_H_
#define TESSERA_OFFLOAD_OPTIMIZER_CUDA_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "base/dtype/dtype.h"
#include "offload/optimizer/kernels.h"

namespace tessera::offload::TESSERA_KERNELS {

// Executes RunStep(job) on device memory.
void LaunchStep(KernelStream stream, const StepJob& job);

// The number of terms of `count` elements.
inline int64_t TermsOf(int64_t count) {
  return (count + kElementsOfTerm - 1) / kElementsOfTerm;
}

// Writes the statistics of all elements to `result`. `terms` has room for
// TermsOf(count) terms; it is unused if there is only one.
void LaunchStatistics(KernelStream stream, DType dtype, const std::byte* data,
                      int64_t count, RunStatistics* terms,
                      RunStatistics* result);

}  // namespace tessera::offload::TESSERA_KERNELS

#endif  // TESSERA_OFFLOAD_OPTIMIZER_CUDA_KERNELS_H_
