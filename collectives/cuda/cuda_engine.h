// The cuda engine: ranks are threads of one process, with one or more devices
// that reach each other's memory. device_group.h describes its design.
#ifndef TESSERA_COLLECTIVES_CUDA_CUDA_ENGINE_H_
#define TESSERA_COLLECTIVES_CUDA_CUDA_ENGINE_H_

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/communicator.h"
#include "collectives/cuda/device_group.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

// Lets `device` access the memory of all `devices`. FailedPrecondition, with
// the names of both devices, if it cannot access the memory of one of them.
using DeviceConnector = absl::Status (*)(Device& device,
                                         std::span<Device* const> devices);

// The engine of this rank. A collective over the ranks of `host`. `device` must
// outlive the engine. FailedPrecondition, on every rank, if the ranks are not
// threads of one process, or more than kMostDeviceRanks.
absl::StatusOr<std::unique_ptr<Engine>> CreateDeviceEngine(
    Communicator& host, Device& device, const CollectiveKernels& kernels,
    DeviceConnector connect);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CUDA_CUDA_ENGINE_H_
