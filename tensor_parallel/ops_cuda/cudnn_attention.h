// CudnnAttention: attention in bf16 by cuDNN, on a GPU.
//
//   TESSERA_ASSIGN_OR_RETURN(auto cudnn,
//                            CreateCudnnAttention(queue, {}, scratch));
//   if (cudnn != nullptr && cudnn->Supports(block, state)) {
//     TESSERA_RETURN_IF_ERROR(cudnn->Attend(stream, block, state));
//   } else {
//     ...  // A kernel of our own.
//   }
//
// Available only in native builds with cuDNN.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_ATTENTION_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_ATTENTION_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "base/device/device.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/scratch.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

struct CudnnAttentionOptions {
  // Make equal runs give equal bits. The backward then needs a workspace of 2
  // bytes for each pair of a query and a key of every head (2.3 GB for 2
  // sequences of 4096 tokens and 32 heads) instead of 2 copies of the query in
  // f32.
  bool deterministic = true;
};

// The attention of one queue. Blocks are those of Attend and AttendGradient
// (ops/ops.h), non-empty and not of kind kNone.
class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;

  // True if cuDNN computes this block forward, or its gradient. The first call
  // for a shape compiles a plan, which takes about a second.
  virtual bool Supports(const AttentionBlock& block,
                        const AttentionState& state) = 0;
  virtual bool SupportsGradient(const AttentionBlock& block,
                                const AttentionGradients& gradients) = 0;

  // Unimplemented, with nothing enqueued, for blocks that are not supported;
  // ResourceExhausted if there is no memory for the workspace. A block's
  // output, and gradients of queries, keys and values, are rounded to bf16
  // before they are merged or added; cuDNN writes those of a whole block
  // directly.
  virtual absl::Status Attend(KernelStream stream, const AttentionBlock& block,
                              const AttentionState& state) = 0;
  virtual absl::Status AttendGradient(KernelStream stream,
                                      const AttentionBlock& block,
                                      const AttentionGradients& gradients) = 0;
};

// OK if cuDNN can be loaded and is recent enough (kLeastCudnnVersion).
absl::Status CheckCudnn();

// Null if CheckCudnn fails, as in the emulation. `scratch` has memory of the
// queue's device, is used only on this queue, and must outlive the result.
absl::StatusOr<std::unique_ptr<CudnnAttention>> CreateCudnnAttention(
    Queue& queue, const CudnnAttentionOptions& options, Scratch& scratch);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_ATTENTION_H_
