// Kernels that convert between the packed operands of cuDNN's attention and
// those of Attend and AttendGradient (ops/ops.h), which have strides and are
// summed in f32.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_ATTENTION_KERNELS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_ATTENTION_KERNELS_H_

#include <cstdint>

#include "base/cuda/stream.h"
#include "base/dtype/small_float.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

// A tensor [sequences, positions, heads, size] of T whose last dimension is
// contiguous; strides are in elements.
template <typename T>
struct HeadRows {
  T* data = nullptr;
  int64_t sequence_stride = 0;
  int64_t position_stride = 0;
  int64_t head_stride = 0;
};

struct HeadRowSizes {
  int64_t sequences = 0;
  int64_t positions = 0;
  int64_t heads = 0;
  int64_t size = 0;  // The head size.
};

// Merges a block's softmax (Milakov and Gimelshein, arXiv 1805.02867) into
// `state`, whose log_sum_exp has a size of 1:
//   total = log(exp(state_log) + exp(log))
//   state = state exp(state_log - total) + block exp(log - total)
// `block` is packed; `log` is [sequences, heads, positions], contiguous.
void LaunchMergeAttention(KernelStream stream, const HeadRowSizes& sizes,
                          const BF16* block, const float* log,
                          const HeadRows<float>& state,
                          const HeadRows<float>& state_log);

// packed = x, rounded to bf16.
void LaunchPackRows(KernelStream stream, const HeadRowSizes& sizes,
                    const HeadRows<const float>& x, BF16* packed);

// log = state_log, as [sequences, heads, positions]; infinity if a query saw no
// key, so that its probabilities are zero.
void LaunchPackLogSumExp(KernelStream stream, const HeadRowSizes& sizes,
                         const HeadRows<const float>& state_log, float* log);

// state_log = log, which is [sequences, heads, positions].
void LaunchUnpackLogSumExp(KernelStream stream, const HeadRowSizes& sizes,
                           const float* log, const HeadRows<float>& state_log);

// y += packed.
void LaunchAddPackedRows(KernelStream stream, const HeadRowSizes& sizes,
                         const BF16* packed, const HeadRows<float>& y);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_ATTENTION_KERNELS_H_
