// Plain attention kernels, for f32 and f64, and for bf16 where cuDNN is not
// used: Attend and AttendGradient of ops.h for any head size and any strides.
//
// Tiles of 64 queries by 64 keys go through shared memory; products are sums in
// statistics, in registers. Heads wider than the registers hold are done in
// parts, each of which computes the scores anew. Results depend on shapes
// alone: the gradient has a kernel by tiles of queries and one by tiles of
// keys, which add to disjoint elements without atomics.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_ATTENTION_H_

#include "absl/status/status.h"
#include "base/cuda/stream.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

absl::Status Attend(KernelStream stream, const AttentionBlock& block,
                    const AttentionState& state);

absl::Status AttendGradient(KernelStream stream, const AttentionBlock& block,
                            const AttentionGradients& gradients);

// Merges attention over one block of keys into `state`, as Attend does:
// `output` [sequences, queries, heads, d] of f64, f32, bf16 or f16, and
// `log_sum_exp` [sequences, queries, heads] of statistics with any strides.
// Where that is minus infinity the query saw no key, and `output` does not
// count.
absl::Status MergeAttention(KernelStream stream, const ConstTensorView& output,
                            const ConstTensorView& log_sum_exp,
                            const AttentionState& state);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_ATTENTION_H_
