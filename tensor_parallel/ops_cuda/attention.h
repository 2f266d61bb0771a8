// Attention kernels without libraries, for f32 and f64, and for bf16 if cuDNN
// is not used: Attend and AttendGradient of ops/ops.h for any head size and any
// strides; and MaxScores for all types.
//
// Tiles of 64 queries by 64 keys are loaded into shared memory; products are
// summed in registers, in the type of statistics. Heads that do not fit into
// registers are processed in parts, each of which recomputes the scores. The
// order of summation depends only on the shapes: the gradient has one kernel by
// tiles of queries and one by tiles of keys, which add to disjoint elements
// without atomics.
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

absl::Status RaiseMaxScores(KernelStream stream, const AttentionBlock& block,
                            const TensorView& max_scores);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_ATTENTION_H_
