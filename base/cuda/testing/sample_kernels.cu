#include <cstdint>

#include "base/cuda/kernel.h"
#include "base/cuda/testing/sample_kernels.h"

namespace tessera::TESSERA_KERNELS {
namespace {

constexpr uint32_t kAll = 0xffffffffu;

__device__ inline float WarpSum(float x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    x += __shfl_xor_sync(kAll, x, lanes);
  }
  return x;
}

template <Bug bug>
__device__ inline float BlockSum(float x) {
  TESSERA_SHARED(float, sums, 32);
  x = WarpSum(x);
  const bool writes = threadIdx.x % 32 == 0;
  if (writes && !(bug == Bug::kUnwrittenShared && threadIdx.x == 32)) {
    sums[threadIdx.x / 32] = x;
  }
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f;
  x = WarpSum(x);
  if constexpr (bug != Bug::kDroppedBarrier) __syncthreads();
  return x;
}

template <Bug bug>
__device__ inline void Diverge() {
  const bool first = threadIdx.x % 32 < 16;
  if constexpr (bug == Bug::kDivergentShuffle) {
    if (first) {
      __shfl_xor_sync(kAll, 1, 1);
    } else {
      __ballot_sync(kAll, 1);
    }
  } else if constexpr (bug == Bug::kBarrierInBranch) {
    if (first) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if constexpr (bug == Bug::kForeignMask) {
    __syncwarp(0x0000ffffu);
  } else if constexpr (bug == Bug::kMissingThread) {
    if (!first) __shfl_xor_sync(kAll, 1, 1);
  }
}

template <Bug bug>
__global__ void Sums(const float* x, int count, float* sums) {
  const float* const row = x + static_cast<int64_t>(blockIdx.x) * count;
  float sum = 0, squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count;
       i += static_cast<int>(blockDim.x)) {
    sum += row[i];
    squares += row[i] * row[i];
  }
  Diverge<bug>();
  sum = BlockSum<bug>(sum);
  squares = BlockSum<bug>(squares);
  if (threadIdx.x != 0) return;
  if constexpr (bug == Bug::kSharedTotal) {
    sums[0] += sum + squares;
  } else {
    sums[blockIdx.x + (bug == Bug::kPastTheEnd ? 1 : 0)] = sum + squares;
  }
}

}  // namespace

void LaunchSums(KernelStream stream, Bug bug, int blocks, int threads,
                const float* x, int count, float* sums) {
  auto* kernel = Sums<Bug::kNone>;
  switch (bug) {
    case Bug::kNone:
      break;
    case Bug::kDroppedBarrier:
      kernel = Sums<Bug::kDroppedBarrier>;
      break;
    case Bug::kSharedTotal:
      kernel = Sums<Bug::kSharedTotal>;
      break;
    case Bug::kDivergentShuffle:
      kernel = Sums<Bug::kDivergentShuffle>;
      break;
    case Bug::kBarrierInBranch:
      kernel = Sums<Bug::kBarrierInBranch>;
      break;
    case Bug::kForeignMask:
      kernel = Sums<Bug::kForeignMask>;
      break;
    case Bug::kMissingThread:
      kernel = Sums<Bug::kMissingThread>;
      break;
    case Bug::kUnwrittenShared:
      kernel = Sums<Bug::kUnwrittenShared>;
      break;
    case Bug::kPastTheEnd:
      kernel = Sums<Bug::kPastTheEnd>;
      break;
  }
  Launch(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
         0, stream, x, count, sums);
}

}  // namespace tessera::TESSERA_KERNELS
