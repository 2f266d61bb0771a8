// Kernels for the tests of the emulation: correct ones, and each kind of bug.
#ifndef TESSERA_BASE_CUDA_TESTING_SAMPLE_KERNELS_H_
#define TESSERA_BASE_CUDA_TESTING_SAMPLE_KERNELS_H_

#include "base/cuda/stream.h"

namespace tessera::TESSERA_KERNELS {

enum class Bug {
  kNone,
  kDroppedBarrier,    // Between two uses of the same shared memory.
  kSharedTotal,       // All blocks add to one element without atomics.
  kDivergentShuffle,  // Half of a warp shuffles; the other half votes.
  kBarrierInBranch,   // Half of a block is in another barrier.
  kForeignMask,       // A thread is not in its own mask.
  kMissingThread,     // Half of a warp shuffles once more.
  kUnwrittenShared,   // Reads unwritten shared memory.
  kPastTheEnd,        // Stores past the end of the output.
};

// sums[block] = the sum of `count` elements of `x` from block * count on, plus
// the sum of their squares.
void LaunchSums(KernelStream stream, Bug bug, int blocks, int threads,
                const float* x, int count, float* sums);

}  // namespace tessera::TESSERA_KERNELS

#endif  // TESSERA_BASE_CUDA_TESTING_SAMPLE_KERNELS_H_
