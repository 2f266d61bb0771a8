// Attend and AttendGradient of ops/ops.h on the CPU.
//
// Tiles of queries (all heads that share a key head together) against tiles of
// keys: two products by OpenBLAS a tile forward, five backward, and one pass of
// the softmax between them. Scores are never stored but for a tile; tiles that
// no query sees are skipped, and tiles that are partly seen are cut to the keys
// that are. bf16 keys and values of one head at a time are
// converted to f32, which takes keys x d floats for each of the two.
//
// State and gradients must not overlap anything else.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_

#include "absl/status/status.h"
#include "tensor_parallel/ops/attention_block.h"

namespace tessera::tensor_parallel::cpu {

absl::Status Attend(const AttentionBlock& block, const AttentionState& state);
absl::Status AttendGradient(const AttentionBlock& block,
                            const AttentionGradients& gradients);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_
