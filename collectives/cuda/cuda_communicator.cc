#include "collectives/cuda/cuda_communicator.h"

#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/cuda/collective_kernels.h"
#include "collectives/cuda/connect_devices.h"
#include "collectives/cuda/cuda_engine.h"

namespace tessera::collectives::TESSERA_KERNELS {

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(Communicator& host,
                                                         Device& device) {
  return CreateDeviceEngine(
      host, device, {.fold = LaunchFold, .moves = LaunchMoves}, ConnectDevices);
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateCudaCommunicator(
    std::unique_ptr<Communicator> host, Device& device) {
  if (host == nullptr) {
    return absl::InvalidArgumentError(
        "host is null; give the communicator for memory of the host");
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                           CreateCudaEngine(*host, device));
  return Communicator::CreateOnDevice(std::move(host), std::move(engine));
}

}  // namespace tessera::collectives::TESSERA_KERNELS
