#include "offload/cuda/cuda_source.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/cuda/cuda_memory.h"
#include "offload/pressure/reading/budget_source.h"

namespace tessera::offload {

absl::StatusOr<std::shared_ptr<MemorySource>> CudaSource(int ordinal) {
  TESSERA_RETURN_IF_ERROR(CudaMemoryUseOf(ordinal).status());
  return std::make_shared<DeviceSource>(
      absl::StrCat("cuda:", ordinal),
      [ordinal]() -> absl::StatusOr<DeviceMemory> {
        TESSERA_ASSIGN_OR_RETURN(const CudaMemoryUse use,
                                 CudaMemoryUseOf(ordinal));
        return DeviceMemory{use.free, use.total};
      });
}

}  // namespace tessera::offload
