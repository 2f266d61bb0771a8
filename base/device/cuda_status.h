// CudaStatus: converts an error of the CUDA runtime into a Status.
//
//   TESSERA_RETURN_IF_ERROR(CudaStatus(cudaFree(data), "free of the cache"));
//
// Exists only in builds with the CUDA toolkit.
#ifndef TESSERA_BASE_DEVICE_CUDA_STATUS_H_
#define TESSERA_BASE_DEVICE_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// OK for cudaSuccess. Otherwise the message is "`what`: " with the runtime's
// name and text for the error, and the code is Unavailable if there is no
// usable device or driver, ResourceExhausted if memory ran out, InvalidArgument
// for a wrong value or device, and Internal for everything else.
absl::Status CudaStatus(cudaError_t error, std::string_view what);

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_CUDA_STATUS_H_
