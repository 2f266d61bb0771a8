// NativeNccl: loads NVIDIA's NCCL as an NcclApi.
#ifndef TESSERA_COLLECTIVES_NCCL_NATIVE_NCCL_H_
#define TESSERA_COLLECTIVES_NCCL_NATIVE_NCCL_H_

#include "absl/status/statusor.h"
#include "collectives/nccl/nccl_api.h"

namespace tessera::collectives {

// Loads the library at the first call. Unimplemented if this program was built
// without a CUDA toolkit with NCCL, NotFound if there is no library.
absl::StatusOr<const NcclApi*> NativeNccl();

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NATIVE_NCCL_H_
