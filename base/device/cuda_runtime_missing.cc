// CudaRuntime in builds without the CUDA toolkit.
#include "base/device/cuda_runtime.h"

namespace tessera {

absl::StatusOr<std::shared_ptr<CudaRuntime>> NativeCudaRuntime() {
  return absl::UnimplementedError(
      "built without the CUDA toolkit; install it, or set CUDA_HOME to "
      "its directory, and build with --config=cuda");
}

}  // namespace tessera
