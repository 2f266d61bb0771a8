#include "offload/tier/cuda_pinning.h"

#include <cstddef>
#include <memory>

#include "base/device/cuda_runtime.h"
#include "base/status_macros.h"

namespace tessera::offload {

Pinning CudaPinning() {
  return {.pin = [](void* data, size_t bytes) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<CudaRuntime> runtime,
                                     NativeCudaRuntime());
            TESSERA_RETURN_IF_ERROR(runtime->DeviceCount().status());
            return runtime->Pin(data, bytes);
          },
          // An arena in destruction cannot report the error.
          .unpin =
              [](void* data, size_t) {
                const auto runtime = NativeCudaRuntime();
                if (runtime.ok()) (*runtime)->Unpin(data).IgnoreError();
              }};
}

}  // namespace tessera::offload
