// Attend and AttendGradient of ops/ops.h on the CPU.
//
// Tiles of queries (all heads that share a key head together) against tiles of
// keys: two products a tile forward, five backward, and one pass of the softmax
// between them. Scores are never stored but for a tile; tiles that no query
// sees are skipped, and tiles that are partly seen are cut to the keys that
// are. The algorithm is FlashAttention-2 (Dao, 2023), sections 3.1 and 3.2.
//
// With bf16, products are of bf16 where the processor multiplies it
// (onednn_gemm.h): weights and their gradients are rounded to it, once, and
// keys and values are read where they are. Elsewhere, and for a few queries
// only, bf16 is converted to f32, which takes keys x d floats for each of the
// two and each thread. Softmax, statistics and sums are in f32 (f64 for f64).
//
// Threads take a key head of a sequence (forward: for some of the queries) at a
// time. State and gradients must not overlap anything else.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_

#include "base/os/thread_pool.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel::cpu {

void Attend(ThreadPool& pool, const AttentionBlock& block,
            const AttentionState& state);
void AttendGradient(ThreadPool& pool, const AttentionBlock& block,
                    const AttentionGradients& gradients);

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ATTENTION_H_
