#include "offload/cuda/cuda_pinning.h"

#include "base/tensor/cuda/cuda_memory.h"

namespace tessera::offload {

Pinning CudaPinning() {
  return {.pin = CudaPin,
          // An arena that is going away has nobody to tell.
          .unpin = [](void* data, size_t) { CudaUnpin(data).IgnoreError(); }};
}

}  // namespace tessera::offload
