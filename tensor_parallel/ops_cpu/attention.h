// The operations Attend, AttendGradient and MaxScores of ops/ops.h on the CPU.
//
// The algorithm is FlashAttention-2 (Dao, 2023), sections 3.1 and 3.2. It
// multiplies tiles of queries (of all heads that share a key head) by tiles of
// keys: two products per tile in the forward and five in the backward, with one
// pass of the softmax between them. Only the scores of the current tile are
// stored. Tiles that no query sees are skipped, and partly visible tiles are
// clipped to the visible keys.
//
// With bf16, if the processor has bf16 products (onednn_gemm.h), weights and
// their gradients are rounded to bf16 once, and keys and values are read in
// place. Otherwise, and for small numbers of queries, keys and values are
// converted to f32, which takes keys x d floats for each of the two and each
// thread. Softmax, statistics and sums are in f32 (f64 for f64).
//
// A unit of work of a thread is a key head of a sequence (in the forward, for
// some of the queries). State and gradients must not overlap any other operand.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_

#include "base/os/thread_pool.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::cpu {

void Attend(ThreadPool& pool, const AttentionBlock& block,
            const AttentionState& state);
void AttendGradient(ThreadPool& pool, const AttentionBlock& block,
                    const AttentionGradients& gradients);
void RaiseMaxScores(ThreadPool& pool, const AttentionBlock& block,
                    const TensorView& max_scores);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_
