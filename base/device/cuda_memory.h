// Memory of CUDA devices, and host memory for copies at full speed.
//
//   TESSERA_ASSIGN_OR_RETURN(auto memory, CudaDeviceMemory(/*ordinal=*/0));
//   TESSERA_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(memory, 1 << 20));
//   TESSERA_RETURN_IF_ERROR(CudaCopyBytes(buffer.data(), host, 1 << 20));
//
// Every function here returns Unimplemented in a build without the CUDA
// toolkit, and Unavailable, with the runtime's message, on a machine without a
// usable device. Safe for concurrent use; the calling thread's current device
// does not change.
#ifndef TESSERA_BASE_DEVICE_CUDA_MEMORY_H_
#define TESSERA_BASE_DEVICE_CUDA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/memory.h"

namespace tessera {

// Devices that this process sees: at least 1.
absl::StatusOr<int> CudaDeviceCount();

// The memory of one device, from cudaMalloc. Each allocation synchronises the
// device and costs tens of microseconds or more: allocate once and keep it.
// OutOfRange if there is no such device.
absl::StatusOr<std::shared_ptr<MemoryResource>> CudaDeviceMemory(int ordinal);

// Page-locked host memory, from cudaHostAlloc, usable with every device.
// Locking pages is slow and takes them from the rest of the machine.
absl::StatusOr<std::shared_ptr<MemoryResource>> PinnedHostMemory();

// Locks the pages of existing memory (cudaHostRegister), for use with every
// device; and unlocks them. Errors are the runtime's: ResourceExhausted,
// InvalidArgument if locked before, and so on.
absl::Status CudaPin(void* data, size_t bytes);
absl::Status CudaUnpin(void* data);

// The memory of a device, of all processes together.
struct CudaMemoryUse {
  int64_t free = 0;  // bytes
  int64_t total = 0;
};
// OutOfRange if there is no such device.
absl::StatusOr<CudaMemoryUse> CudaMemoryUseOf(int ordinal);

// Copies between any two of host, pinned and device memory, also of different
// devices; the ranges do not overlap. Returns when the copy is complete. Runs
// after the work already given to the calling thread's default stream and to
// the legacy default stream, but not after that of other streams.
absl::Status CudaCopyBytes(void* target, const void* source, size_t bytes);

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_CUDA_MEMORY_H_
