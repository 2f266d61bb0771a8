// The build without the CUDA toolkit.
#include "base/device/cuda_memory.h"

namespace tessera {
namespace {

absl::Status Missing() {
  return absl::UnimplementedError(
      "built without the CUDA toolkit; install it, or set CUDA_HOME to "
      "its directory, and build with --config=cuda");
}

}  // namespace

absl::StatusOr<int> CudaDeviceCount() { return Missing(); }

absl::StatusOr<std::shared_ptr<MemoryResource>> CudaDeviceMemory(int) {
  return Missing();
}

absl::StatusOr<std::shared_ptr<MemoryResource>> PinnedHostMemory() {
  return Missing();
}

absl::Status CudaPin(void*, size_t) { return Missing(); }

absl::Status CudaUnpin(void*) { return Missing(); }

absl::StatusOr<CudaMemoryUse> CudaMemoryUseOf(int) { return Missing(); }

absl::Status CudaCopyBytes(void*, const void*, size_t) { return Missing(); }

}  // namespace tessera
