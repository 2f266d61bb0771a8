// The build without the CUDA toolkit.
#include "absl/status/status.h"
#include "zero3/state/cuda_state_ops.h"

namespace tessera::zero3::native {

absl::StatusOr<std::shared_ptr<StateOps>> CudaStateOps(Queue&) {
  return absl::UnimplementedError(
      "CudaStateOps: built without the CUDA toolkit; install it, or set "
      "CUDA_HOME to its directory, and build with --config=cuda");
}

}  // namespace tessera::zero3::native
