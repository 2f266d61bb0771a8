// The size of the device memory that a queue's CudaOps keep for libraries:
// cuBLASLt's workspace and the scratch memory of cuDNN's attention. Pure
// arithmetic, available in every build.
//
//   const int64_t bytes = LibraryWorkspaceBytes(
//       {.sequences = 2, .queries = 4096, .keys = 4096, .heads = 32,
//        .kv_heads = 8, .head_size = 128, .causal = true},
//       /*deterministic=*/true);
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_LIBRARY_WORKSPACE_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_LIBRARY_WORKSPACE_H_

#include <cstdint>
#include <tuple>
#include <utility>

namespace tessera::tensor_parallel {

// A block of attention (AttentionBlock of ops/ops.h) as cuDNN sees it.
struct CudnnAttentionShape {
  int64_t sequences = 0;
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  // Query i sees the keys up to i + (keys - queries).
  bool causal = false;

  int64_t query_rows() const { return sequences * queries * heads; }
  int64_t key_rows() const { return sequences * keys * kv_heads; }

  auto tied() const {
    return std::tie(sequences, queries, keys, heads, kv_heads, head_size,
                    causal);
  }
  friend bool operator==(const CudnnAttentionShape& a,
                         const CudnnAttentionShape& b) {
    return a.tied() == b.tied();
  }
  template <typename H>
  friend H AbslHashValue(H hash, const CudnnAttentionShape& shape) {
    return H::combine(std::move(hash), shape.tied());
  }
};

// Allocated by CreateCudaOps, once for each queue.
inline constexpr int64_t kCublasLtWorkspaceBytes = int64_t{64} << 20;

// The parts of the scratch memory of one call of attention, as offsets in
// bytes; the plan's workspace is the last one.
struct CudnnForwardScratch {
  CudnnForwardScratch(const CudnnAttentionShape& shape,
                      int64_t workspace_bytes);

  int64_t output;       // bf16, packed.
  int64_t log_sum_exp;  // f32 [sequences, heads, queries].
  int64_t workspace;
  int64_t bytes;  // The total size.
};
struct CudnnBackwardScratch {
  CudnnBackwardScratch(const CudnnAttentionShape& shape, bool deterministic,
                       int64_t workspace_bytes);

  int64_t output;  // bf16, packed, as the gradients are.
  int64_t log_sum_exp;
  int64_t dots;  // f32 [sequences, heads, queries].
  int64_t query_gradient;
  int64_t key_gradient;
  int64_t value_gradient;
  int64_t query_sum;  // f32, packed; nothing in deterministic plans.
  int64_t workspace;
  int64_t bytes;
};

// An upper bound of the workspace of a backward plan (BuildBackwardPlan of
// cudnn_plans.h) on Hopper. cudnn_plans_test compares it with the plans that
// cuDNN compiles:
// - if key heads are shared, gradients of keys and values in bf16 for every
//   query head
// - deterministic: 2 bytes for each pair of a query and a key of every head
int64_t CudnnBackwardWorkspaceBytes(const CudnnAttentionShape& shape,
                                    bool deterministic);

// An upper bound of the device memory that CudaOps of one queue (CreateCudaOps,
// CudaOpsOptions::deterministic) keep for libraries from the first step on,
// when they compute attention over blocks of `shape` in bf16, forward and
// backward. All blocks share the scratch memory, so take the maximum over all
// shapes. For a shape of zeros, which stands for attention without cuDNN (other
// types than bf16, first_keys), the result is the workspace of cuBLASLt.
int64_t LibraryWorkspaceBytes(const CudnnAttentionShape& shape,
                              bool deterministic);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_LIBRARY_WORKSPACE_H_
