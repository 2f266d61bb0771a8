// CudnnAttention: attention in bf16 by cuDNN, on a GPU.
//
//   TESSERA_ASSIGN_OR_RETURN(auto cudnn,
//                            CreateCudnnAttention(queue, {}, scratch));
//   if (cudnn != nullptr && cudnn->Supports(block)) {
//     TESSERA_RETURN_IF_ERROR(cudnn->Attend(stream, block, state));
//   } else {
//     ...  // A kernel of our own.
//   }
//
// Exists only natively, where cuDNN is installed.
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
  // Equal runs give equal bits. The backward then needs workspace of 2 bytes
  // for each head's pairs of a query and a key (2.3 GB for 2 sequences of 4096
  // tokens and 32 heads) instead of 2 copies of the query in f32.
  bool deterministic = true;
};

// For one queue. Blocks are those of Attend and
// AttendGradient (ops/ops.h), not of kind kNone and not empty.
class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;

  // True if cuDNN computes this block forward, or its gradient. The first call
  // for a shape compiles a plan, which takes about a second.
  virtual bool Supports(const AttentionBlock& block) = 0;
  virtual bool SupportsGradient(const AttentionBlock& block,
                                const AttentionGradients& gradients) = 0;

  // Unimplemented, with nothing enqueued, for blocks that are not supported;
  // ResourceExhausted if there is no memory for the workspace. Gradients of
  // queries, keys and values are rounded to bf16 before they are added.
  virtual absl::Status Attend(KernelStream stream, const AttentionBlock& block,
                              const AttentionState& state) = 0;
  virtual absl::Status AttendGradient(KernelStream stream,
                                      const AttentionBlock& block,
                                      const AttentionGradients& gradients) = 0;
};

// OK if cuDNN is there, can be loaded and is 9.6 or newer.
absl::Status CheckCudnn();

// Null if CheckCudnn fails, as in the emulation. `scratch`, which
// outlives the result, is of the queue's device and is used on this queue only.
absl::StatusOr<std::unique_ptr<CudnnAttention>> CreateCudnnAttention(
    Queue& queue, const CudnnAttentionOptions& options, Scratch& scratch);

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_ATTENTION_H_
