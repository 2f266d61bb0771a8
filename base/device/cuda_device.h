// CudaDevice: a GPU through the CUDA runtime.
//
//   TESSERA_ASSIGN_OR_RETURN(auto device, CudaDevice::Create({.ordinal = 0}));
//   TESSERA_ASSIGN_OR_RETURN(auto queue, device->CreateQueue("compute"));
//   TESSERA_RETURN_IF_ERROR(queue->Copy(staging.bytes(), on_device.bytes()));
//
// A queue is a stream, which Queue::native_handle() returns. Functions that
// enqueue work on it are called immediately, with unchanged addresses; other
// functions are Unimplemented. An execution error is reported by the next wait
// or runtime call. From then on every call of every queue returns it, and the
// process must exit, because the runtime is no longer usable.
//
// The calling thread's current device does not change (ScopedCudaDevice).
#ifndef TESSERA_BASE_DEVICE_CUDA_DEVICE_H_
#define TESSERA_BASE_DEVICE_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/cuda_runtime.h"
#include "base/device/device.h"
#include "base/tensor/memory.h"

namespace tessera {

struct CudaDeviceOptions {
  int ordinal = 0;  // Among the devices that the process sees.
  // Allocated at creation, in one piece (arena.h). If 0, each request is a
  // separate allocation, for which the host waits for the device.
  size_t arena_bytes = 0;
  // Null for this machine's runtime, NativeCudaRuntime().
  std::shared_ptr<CudaRuntime> runtime = nullptr;
};

class CudaDeviceCore;

class CudaDevice final : public Device {
 public:
  // Unimplemented without the toolkit; Unavailable without a driver or a GPU;
  // OutOfRange if there is no such GPU; ResourceExhausted if it has less than
  // `arena_bytes` of free memory.
  static absl::StatusOr<std::shared_ptr<CudaDevice>> Create(
      const CudaDeviceOptions& options = {});

  // All queues must be destroyed first.
  ~CudaDevice() override;

  std::string_view name() const override;
  int ordinal() const;
  std::shared_ptr<MemoryResource> memory() const override { return memory_; }
  // Page-locked memory, which is cached for reuse when it is freed.
  std::shared_ptr<MemoryResource> staging_memory() const override {
    return staging_memory_;
  }
  absl::StatusOr<std::unique_ptr<Queue>> CreateQueue(
      std::string_view name) override;
  absl::Status Synchronize(SourcePlace place = SourcePlace::current()) override;
  DeviceCounts counts() const override;

  // The GPU's current memory use by all processes.
  absl::StatusOr<CudaMemoryUse> MemoryUse() const;

 private:
  explicit CudaDevice(std::shared_ptr<CudaDeviceCore> core);

  absl::Status TakeMemory(size_t arena_bytes);

  // Shared with memory resources and events, which may outlive the device.
  const std::shared_ptr<CudaDeviceCore> core_;
  std::shared_ptr<MemoryResource> memory_;
  std::shared_ptr<MemoryResource> staging_memory_;
};

// A GPU that this process sees.
struct CudaDeviceInfo {
  int ordinal = 0;
  CudaProperties properties;
  // OK, or FailedPrecondition with the reason in one line.
  absl::Status usable;
};

// Kernels need bfloat16 and asynchronous copies: GPUs from Ampere on.
inline constexpr int kLeastComputeMajor = 8;

// The GPUs that this process sees, usable or not; at least one. Unimplemented
// without the toolkit; NotFound without a driver or a GPU; FailedPrecondition,
// with the versions, if the driver is too old. Uses no GPU memory. A null
// `runtime` is this machine's.
absl::StatusOr<std::vector<CudaDeviceInfo>> FindCudaDevices(
    std::shared_ptr<CudaRuntime> runtime = nullptr);

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_CUDA_DEVICE_H_
