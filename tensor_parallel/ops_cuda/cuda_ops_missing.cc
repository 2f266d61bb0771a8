#include "absl/status/status.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"

namespace tessera::tensor_parallel::native {

absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(Queue&,
                                                   const CudaOpsOptions&) {
  return absl::UnimplementedError(
      "this build has no CUDA toolkit: operations run on the CPU only");
}

absl::Status CheckCudnn() {
  return absl::UnimplementedError("this build has no cuDNN");
}

}  // namespace tessera::tensor_parallel::native
