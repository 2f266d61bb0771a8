#include <cuda_runtime_api.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda_status.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "collectives/cuda/connect_devices.h"

namespace tessera::collectives::native {
namespace {

// Restores the calling thread's current device.
class CurrentDevice {
 public:
  CurrentDevice() { static_cast<void>(cudaGetDevice(&before_)); }
  ~CurrentDevice() { static_cast<void>(cudaSetDevice(before_)); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

absl::Status EnableAccess(const Device& device, int own, const Device& peer,
                          int other) {
  int can_access = 0;
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceCanAccessPeer(&can_access, own, other),
                 "cudaDeviceCanAccessPeer"));
  if (can_access == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cuda: ", device.name(), " cannot access the memory of ", peer.name(),
        " (no peer access); use the nccl engine, or give all ranks devices "
        "with peer access"));
  }
  const CurrentDevice restore;
  TESSERA_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(own), "cudaSetDevice"));
  const cudaError_t error = cudaDeviceEnablePeerAccess(other, /*flags=*/0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) {
    return CudaStatus(error, "cudaDeviceEnablePeerAccess");
  }
  static_cast<void>(cudaGetLastError());  // Clears the error.
  return absl::OkStatus();
}

}  // namespace

absl::Status ConnectDevices(Device& device, std::span<Device* const> devices) {
  const int own = device.memory()->device_ordinal();
  for (Device* const peer : devices) {
    if (!absl::StartsWith(peer->name(), "cuda")) {
      return absl::InvalidArgumentError(
          absl::StrCat("cuda: the kernels run on CUDA devices; device ",
                       peer->name(), " is none"));
    }
    const int other = peer->memory()->device_ordinal();
    if (other == own) continue;
    TESSERA_RETURN_IF_ERROR(EnableAccess(device, own, *peer, other));
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives::native
