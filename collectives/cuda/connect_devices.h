// ConnectDevices: gives a device access to the memory of others.
#ifndef TESSERA_COLLECTIVES_CUDA_CONNECT_DEVICES_H_
#define TESSERA_COLLECTIVES_CUDA_CONNECT_DEVICES_H_

#include <span>

#include "absl/status/status.h"
#include "base/device/device.h"

namespace tessera::collectives::TESSERA_KERNELS {

// Lets work of `device` access the memory of `devices`, which may include
// `device`. InvalidArgument if a device has no memory for these kernels;
// FailedPrecondition, with the names of both devices, if `device` cannot access
// the memory of another.
absl::Status ConnectDevices(Device& device, std::span<Device* const> devices);

}  // namespace tessera::collectives::TESSERA_KERNELS

#endif  // TESSERA_COLLECTIVES_CUDA_CONNECT_DEVICES_H_
