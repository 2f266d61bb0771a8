// The optimizer's kernels for GPUs: the steps of RunStep and the statistics of
// MeasureGradient, with the same bits (kernels.h).
//
// Memory-bound: every byte moves once, in accesses of 16 bytes where the
// addresses are aligned to them. AdamW on f32 with a bf16 copy moves 30 bytes a
// parameter, with 8-bit moments 18.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_CUDA_KERNELS_H_
#define TESSERA_OFFLOAD_OPTIMIZER_CUDA_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "base/cuda/stream.h"
#include "base/dtype/dtype.h"
#include "offload/optimizer/kernels.h"

namespace tessera::offload::TESSERA_KERNELS {

// RunStep(job) on memory of the device.
void LaunchStep(KernelStream stream, const StepJob& job);

// Terms of `count` elements, which LaunchStatistics needs room for.
inline int64_t TermsOf(int64_t count) {
  return (count + kElementsOfTerm - 1) / kElementsOfTerm;
}

// Writes the statistics of all elements to `result`. `terms` is memory for
// TermsOf(count); one term needs none.
void LaunchStatistics(KernelStream stream, DType dtype, const std::byte* data,
                      int64_t count, RunStatistics* terms,
                      RunStatistics* result);

}  // namespace tessera::offload::TESSERA_KERNELS

#endif  // TESSERA_OFFLOAD_OPTIMIZER_CUDA_KERNELS_H_
