// Helpers for kernels that process a row of a tensor by a block of threads:
// reductions over the block, and the packs of elements of each thread. For .cu
// files.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_ROW_BLOCK_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_ROW_BLOCK_H_

#include <cstdint>

#include "base/cuda/kernel.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

using ::tessera::TESSERA_KERNELS::Launch;

// Threads of a block.
inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

template <typename S>
struct MaxOf {
  __device__ S operator()(S a, S b) const { return Larger(a, b); }
};
template <typename S>
struct SumOf {
  __device__ S operator()(S a, S b) const { return a + b; }
};

// Combines the values of all threads of a block in the order of a tree; every
// thread gets the result. `slots` is shared memory of kWarps values.
template <typename S, typename Combine>
__device__ S BlockReduce(S value, S* slots, const Combine& combine) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  value = slots[0];
  for (int warp = 1; warp < kWarps; ++warp) value = combine(value, slots[warp]);
  return value;
}

// 16 bytes of elements.
template <typename T>
using PackOf = Pack<T, kPackOf<T>>;

// Loads and stores a pack with `count` valid values, in one access if the
// memory is aligned. Neither the assignment of elements to threads nor sums
// depend on the alignment.
template <bool aligned, int pack, typename T>
__device__ Pack<T, pack> LoadValues(const T* at, int count) {
  if (aligned && count == pack) {
    return *reinterpret_cast<const Pack<T, pack>*>(at);
  }
  Pack<T, pack> values;
  for (int j = 0; j < pack; ++j) {
    values.values[j] = j < count ? at[j] : T{};
  }
  return values;
}
template <bool aligned, typename T, int pack>
__device__ void StoreValues(const Pack<T, pack>& values, int count, T* at) {
  if (aligned && count == pack) {
    *reinterpret_cast<Pack<T, pack>*>(at) = values;
    return;
  }
  for (int j = 0; j < pack; ++j) {
    if (j < count) at[j] = values.values[j];
  }
}
template <bool aligned, typename T>
__device__ PackOf<T> LoadPack(const T* at, int count) {
  return LoadValues<aligned, kPackOf<T>>(at, count);
}
template <bool aligned, typename T>
__device__ void StorePack(const PackOf<T>& values, int count, T* at) {
  StoreValues<aligned>(values, count, at);
}

// Calls f(index, values, count) for this thread's packs of a row of n elements;
// `count` of the values are valid: all if the row is aligned, which then
// consists of whole packs (HasPacks).
template <bool aligned, typename T, typename Functor>
__device__ void ForPacks(const T* row, int64_t n, const Functor& f) {
  constexpr int kPack = kPackOf<T>;
  for (int64_t at = int64_t{threadIdx.x} * kPack; at < n;
       at += int64_t{kThreads} * kPack) {
    const int count =
        aligned || at + kPack <= n ? kPack : static_cast<int>(n - at);
    f(at, LoadPack<aligned>(row + at, count), count);
  }
}

// The number of blocks for `count` threads.
inline unsigned BlocksOf(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_ROW_BLOCK_H_
