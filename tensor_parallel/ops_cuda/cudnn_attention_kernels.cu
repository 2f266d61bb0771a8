#include <cmath>

#include "base/cuda/kernel.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/small_float.h"
#include "tensor_parallel/ops_cuda/cudnn_attention_kernels.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

using ::tessera::TESSERA_KERNELS::Launch;

constexpr int kThreads = 256;
// Each warp processes one row of a head, so that its accesses are contiguous.
constexpr int kRowThreads = 32;

struct RowIndex {
  int64_t sequence = 0;
  int64_t position = 0;
  int64_t head = 0;
};

// Row `row` in packed order: sequences, positions, heads.
__device__ RowIndex RowAt(const HeadRowSizes& sizes, int64_t row) {
  return {row / sizes.heads / sizes.positions,
          row / sizes.heads % sizes.positions, row % sizes.heads};
}

template <typename T>
__device__ T* RowOf(const HeadRows<T>& x, const RowIndex& at) {
  return x.data + at.sequence * x.sequence_stride +
         at.position * x.position_stride + at.head * x.head_stride;
}

__device__ int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ int64_t PackedLog(const HeadRowSizes& sizes, const RowIndex& at) {
  return (at.sequence * sizes.heads + at.head) * sizes.positions + at.position;
}

__global__ void MergeAttentionKernel(HeadRowSizes sizes, const BF16* block,
                                     const float* log, HeadRows<float> state,
                                     HeadRows<float> state_log) {
  const int64_t row = ThreadIndex() / kRowThreads;
  const int lane = threadIdx.x % kRowThreads;
  if (row >= sizes.sequences * sizes.positions * sizes.heads) return;
  const RowIndex at = RowAt(sizes, row);
  float* const to_log = RowOf(state_log, at);
  const float before = *to_log, added = log[PackedLog(sizes, at)];
  __syncwarp();  // Lane 0 overwrites what all have read.
  if (added == -INFINITY) return;
  const float largest = before > added ? before : added;
  const float total = largest + std::log(std::exp(before - largest) +
                                         std::exp(added - largest));
  const float keep = std::exp(before - total), take = std::exp(added - total);
  if (lane == 0) *to_log = total;
  float* const to = RowOf(state, at);
  const BF16* const from = block + row * sizes.size;
  for (int64_t i = lane; i < sizes.size; i += kRowThreads) {
    to[i] = to[i] * keep + ConvertValue<float>(from[i]) * take;
  }
}

__global__ void PackRowsKernel(HeadRowSizes sizes, HeadRows<const float> x,
                               BF16* packed) {
  const int64_t row = ThreadIndex() / kRowThreads;
  if (row >= sizes.sequences * sizes.positions * sizes.heads) return;
  const float* const from = RowOf(x, RowAt(sizes, row));
  for (int64_t i = threadIdx.x % kRowThreads; i < sizes.size;
       i += kRowThreads) {
    packed[row * sizes.size + i] = ConvertValue<BF16>(from[i]);
  }
}

__global__ void PackLogSumExpKernel(HeadRowSizes sizes,
                                    HeadRows<const float> state_log,
                                    float* log) {
  const int64_t row = ThreadIndex();
  if (row >= sizes.sequences * sizes.positions * sizes.heads) return;
  const RowIndex at = RowAt(sizes, row);
  const float value = *RowOf(state_log, at);
  log[PackedLog(sizes, at)] = value == -INFINITY ? INFINITY : value;
}

__global__ void UnpackLogSumExpKernel(HeadRowSizes sizes, const float* log,
                                      HeadRows<float> state_log) {
  const int64_t row = ThreadIndex();
  if (row >= sizes.sequences * sizes.positions * sizes.heads) return;
  const RowIndex at = RowAt(sizes, row);
  *RowOf(state_log, at) = log[PackedLog(sizes, at)];
}

__global__ void AddPackedRowsKernel(HeadRowSizes sizes, const BF16* packed,
                                    HeadRows<float> y) {
  const int64_t row = ThreadIndex() / kRowThreads;
  if (row >= sizes.sequences * sizes.positions * sizes.heads) return;
  float* const to = RowOf(y, RowAt(sizes, row));
  for (int64_t i = threadIdx.x % kRowThreads; i < sizes.size;
       i += kRowThreads) {
    to[i] += ConvertValue<float>(packed[row * sizes.size + i]);
  }
}

unsigned BlocksFor(const HeadRowSizes& sizes, int row_threads) {
  const int64_t threads =
      sizes.sequences * sizes.positions * sizes.heads * row_threads;
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

void LaunchMergeAttention(KernelStream stream, const HeadRowSizes& sizes,
                          const BF16* block, const float* log,
                          const HeadRows<float>& state,
                          const HeadRows<float>& state_log) {
  Launch(MergeAttentionKernel, BlocksFor(sizes, kRowThreads), kThreads,
         /*dynamic_shared=*/0, stream, sizes, block, log, state, state_log);
}

void LaunchPackRows(KernelStream stream, const HeadRowSizes& sizes,
                    const HeadRows<const float>& x, BF16* packed) {
  Launch(PackRowsKernel, BlocksFor(sizes, kRowThreads), kThreads,
         /*dynamic_shared=*/0, stream, sizes, x, packed);
}

void LaunchPackLogSumExp(KernelStream stream, const HeadRowSizes& sizes,
                         const HeadRows<const float>& state_log, float* log) {
  Launch(PackLogSumExpKernel, BlocksFor(sizes, 1), kThreads,
         /*dynamic_shared=*/0, stream, sizes, state_log, log);
}

void LaunchUnpackLogSumExp(KernelStream stream, const HeadRowSizes& sizes,
                           const float* log, const HeadRows<float>& state_log) {
  Launch(UnpackLogSumExpKernel, BlocksFor(sizes, 1), kThreads,
         /*dynamic_shared=*/0, stream, sizes, log, state_log);
}

void LaunchAddPackedRows(KernelStream stream, const HeadRowSizes& sizes,
                         const BF16* packed, const HeadRows<float>& y) {
  Launch(AddPackedRowsKernel, BlocksFor(sizes, kRowThreads), kThreads,
         /*dynamic_shared=*/0, stream, sizes, packed, y);
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
