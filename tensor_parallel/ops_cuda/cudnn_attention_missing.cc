#include "tensor_parallel/ops_cuda/cudnn_attention.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {

absl::Status CheckCudnn() {
  return absl::UnimplementedError("this build has no cuDNN");
}

absl::StatusOr<std::unique_ptr<CudnnAttention>> CreateCudnnAttention(
    Queue&, const CudnnAttentionOptions&, Scratch&) {
  return nullptr;
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS
