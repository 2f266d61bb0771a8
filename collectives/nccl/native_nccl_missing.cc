#include "absl/status/status.h"
#include "collectives/nccl/native_nccl.h"

namespace tessera::collectives {

absl::StatusOr<const NcclApi*> NativeNccl() {
  return absl::UnimplementedError(
      "nccl: no CUDA toolkit with NCCL was found when this program was built; "
      "set CUDA_HOME to one and build again");
}

}  // namespace tessera::collectives
