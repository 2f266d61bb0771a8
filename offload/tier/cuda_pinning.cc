#include "offload/tier/cuda_pinning.h"

#include "base/device/cuda_memory.h"

namespace tessera::offload {

Pinning CudaPinning() {
  return {.pin = CudaPin,
          // An arena that is going away has no one to tell.
          .unpin = [](void* data, size_t) { CudaUnpin(data).IgnoreError(); }};
}

}  // namespace tessera::offload
