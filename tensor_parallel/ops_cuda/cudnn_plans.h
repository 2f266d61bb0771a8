// Plans of cuDNN for the forward and backward of attention in bf16 (Dao et al.,
// FlashAttention-2, arXiv 2307.08691).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       CudnnPlan plan, BuildForwardPlan(shape, strides, properties));
//   plan.Run(handle, {{kCudnnQuery, q}, {kCudnnKey, k}, ...}, workspace);
//
// Available only in builds with cuDNN.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_PLANS_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_PLANS_H_

#include <cstdint>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor_parallel/ops_cuda/cudnn_graph.h"
#include "tensor_parallel/ops_cuda/library_workspace.h"

namespace tessera::tensor_parallel {

// The number of elements from one sequence, position or head to the next.
struct CudnnStrides {
  int64_t sequence = 0;
  int64_t position = 0;
  int64_t head = 0;

  friend bool operator==(const CudnnStrides&, const CudnnStrides&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const CudnnStrides& s) {
    return H::combine(std::move(hash), s.sequence, s.position, s.head);
  }
};

// Contiguous [sequences, positions, heads, head_size].
CudnnStrides PackedStrides(int64_t positions, int64_t heads, int64_t head_size);

// The strides of a plan's tensors.
struct CudnnAttentionStrides {
  CudnnStrides query, key, value, output;
  // Zeros for a forward plan.
  CudnnStrides output_gradient, query_gradient, key_gradient, value_gradient;

  // All tensors contiguous.
  static CudnnAttentionStrides Packed(const CudnnAttentionShape& shape);

  auto tied() const {
    return std::tie(query, key, value, output, output_gradient, query_gradient,
                    key_gradient, value_gradient);
  }
  friend bool operator==(const CudnnAttentionStrides& a,
                         const CudnnAttentionStrides& b) {
    return a.tied() == b.tied();
  }
  template <typename H>
  friend H AbslHashValue(H hash, const CudnnAttentionStrides& s) {
    return H::combine(std::move(hash), s.tied());
  }
};

// The arguments of plans. Tensors are bf16 [sequences, positions, heads,
// head_size] unless said otherwise.
enum CudnnAttentionId : int64_t {
  kCudnnQuery = 1,
  kCudnnKey,
  kCudnnValue,
  kCudnnScale,    // f32 of the host: factor of the products.
  kCudnnMasked,   // f32 of the host: the score of keys that are not seen.
                  // Causal plans only.
  kCudnnQueries,  // i32 of the host: the shape's queries and keys. Only of
  kCudnnKeys,     // causal plans whose queries and keys differ in number.
  kCudnnOutput,
  kCudnnLogSumExp,  // f32 [sequences, heads, queries], contiguous.
  // Backward plans only.
  kCudnnOne,  // f32 of the host: 1.
  kCudnnOutputGradient,
  kCudnnQueryGradient,  // The results.
  kCudnnKeyGradient,
  kCudnnValueGradient,
  kCudnnDots,      // Scratch: f32 [sequences, heads, queries].
  kCudnnQueryF32,  // Scratch: f32, as many elements as the query; only of
                   // plans that are not deterministic.
};

// InvalidArgument or Unimplemented if cuDNN does not support the shape; the
// head size must be a multiple of 8 up to 256 (forward) or 128 (backward).
// Takes about a second. `device` must outlive the plan.
absl::StatusOr<CudnnPlan> BuildForwardPlan(const CudnnAttentionShape& shape,
                                           const CudnnAttentionStrides& strides,
                                           const CudnnDescriptor& device);

// With `deterministic`, equal runs give equal bits, at the cost of more
// workspace (2 bytes for each pair of a query and a key of every head) and less
// speed.
absl::StatusOr<CudnnPlan> BuildBackwardPlan(
    const CudnnAttentionShape& shape, const CudnnAttentionStrides& strides,
    bool deterministic, const CudnnDescriptor& device);

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_PLANS_H_
