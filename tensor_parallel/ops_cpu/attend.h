// The two directions of attention.h on tensors that were checked. Internal.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTEND_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTEND_H_

#include "tensor_parallel/ops/attention_block.h"

namespace tessera::tensor_parallel::cpu {

// S is the type of the statistics: float or double.
template <typename S>
void RunAttend(const AttentionBlock& block, const AttentionState& state);
template <typename S>
void RunAttendGradient(const AttentionBlock& block,
                       const AttentionGradients& gradients);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTEND_H_
