// CudaRuntime: an interface to the CUDA runtime calls that Tessera makes, so
// that the code above it can be built and tested on machines without a toolkit.
//
//   TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<CudaRuntime> runtime,
//                            NativeCudaRuntime());
//   TESSERA_ASSIGN_OR_RETURN(int devices, runtime->DeviceCount());
//
// Each function is one call of the runtime. Errors have the runtime's name and
// text, "cudaErrorNoDevice: no CUDA-capable device is detected", and the codes
// Unavailable if there is no usable device or driver, ResourceExhausted if
// memory ran out, InvalidArgument for a wrong value or device,
// FailedPrecondition for what a capture does not allow, and Internal for
// everything else. Thread-safe.
//
// CudaRuntimeStandIn (cuda_runtime_stand_in.h) has the same behaviour on host
// memory.
#ifndef TESSERA_BASE_DEVICE_CUDA_RUNTIME_H_
#define TESSERA_BASE_DEVICE_CUDA_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// A device's memory in bytes, shared by all processes.
struct CudaMemoryUse {
  int64_t free = 0;
  int64_t total = 0;
};

struct CudaProperties {
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int major = 0;     // Compute capability 9.0.
  int minor = 0;
  int64_t total_bytes = 0;
  std::string pci_bus_id;  // "0000:3b:00.0"
};

// CUDA versions, such as 13000 for 13.0.
struct CudaVersions {
  int driver = 0;   // The newest that the driver supports; 0 without a driver.
  int runtime = 0;  // The program's version.
};

class CudaRuntime {
 public:
  using Stream = void*;       // cudaStream_t
  using EventHandle = void*;  // cudaEvent_t
  using Graph = void*;        // cudaGraph_t
  using GraphExec = void*;    // cudaGraphExec_t

  virtual ~CudaRuntime() = default;

  // These create no context, which would use device memory.
  virtual absl::StatusOr<CudaVersions> Versions() = 0;
  virtual absl::StatusOr<int> DeviceCount() = 0;
  virtual absl::StatusOr<CudaProperties> Properties(int ordinal) = 0;
  virtual bool HasContext(int ordinal) = 0;

  // The device of the calling thread, to which the calls below refer.
  virtual absl::StatusOr<int> CurrentDevice() = 0;
  // Creates the context of the device.
  virtual absl::Status SetCurrentDevice(int ordinal) = 0;

  virtual absl::StatusOr<CudaMemoryUse> MemoryUse() = 0;
  // Allocates device memory, aligned to 256 bytes.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual absl::Status Free(void* data) = 0;
  // Page-locked host memory, for all devices.
  virtual absl::StatusOr<void*> AllocateHost(size_t bytes) = 0;
  virtual absl::Status FreeHost(void* data) = 0;
  // Locks the pages of existing memory, for all devices.
  virtual absl::Status Pin(void* data, size_t bytes) = 0;
  virtual absl::Status Unpin(void* data) = 0;

  // Creates a stream that does not synchronise with the legacy default stream.
  virtual absl::StatusOr<Stream> CreateStream() = 0;
  virtual absl::Status DestroyStream(Stream stream) = 0;
  virtual absl::Status SynchronizeStream(Stream stream) = 0;
  virtual absl::Status SynchronizeDevice() = 0;
  // Copies between host and device memory, in any direction.
  virtual absl::Status CopyAsync(void* target, const void* source, size_t bytes,
                                 Stream stream) = 0;
  virtual absl::Status FillAsync(void* target, std::byte value, size_t bytes,
                                 Stream stream) = 0;
  // The error of this thread's kernel launches since the last call.
  virtual absl::Status LastError() = 0;

  // Creates an event without timing, whose waits block the thread.
  virtual absl::StatusOr<EventHandle> CreateEvent() = 0;
  virtual absl::Status DestroyEvent(EventHandle event) = 0;
  virtual absl::Status RecordEvent(EventHandle event, Stream stream) = 0;
  // Waits for the event's last record before this call.
  virtual absl::Status WaitEvent(Stream stream, EventHandle event) = 0;
  virtual absl::StatusOr<bool> QueryEvent(EventHandle event) = 0;
  virtual absl::Status SynchronizeEvent(EventHandle event) = 0;

  // Records the stream's work instead of executing it (cudaStreamBeginCapture,
  // thread-local mode: other threads may make any call). A stream that waits
  // for an event of the capture joins it; the first stream must wait for it
  // before the end. Inside a capture, host waits, event tests and allocations
  // by this thread fail, and EndCapture then fails too.
  virtual absl::Status BeginCapture(Stream stream) = 0;
  virtual absl::StatusOr<Graph> EndCapture(Stream stream) = 0;
  virtual absl::Status DestroyGraph(Graph graph) = 0;
  virtual absl::StatusOr<GraphExec> InstantiateGraph(Graph graph) = 0;
  // A running launch finishes first; the host does not wait for it.
  virtual absl::Status DestroyGraphExec(GraphExec exec) = 0;
  virtual absl::Status LaunchGraph(GraphExec exec, Stream stream) = 0;
};

// Unimplemented in a build without the CUDA toolkit.
absl::StatusOr<std::shared_ptr<CudaRuntime>> NativeCudaRuntime();

// Makes a device the calling thread's current device for a scope. If the
// previous device has no context, the thread stays on the new device: switching
// back would create a context, which takes some hundred MB of that device's
// memory.
class ScopedCudaDevice {
 public:
  ScopedCudaDevice(CudaRuntime& runtime, int ordinal) : runtime_(runtime) {
    const absl::StatusOr<int> previous = runtime.CurrentDevice();
    status_ = previous.status();
    if (!previous.ok() || *previous == ordinal) return;
    status_ = runtime.SetCurrentDevice(ordinal);
    if (status_.ok()) previous_ = *previous;
  }
  ~ScopedCudaDevice() {
    if (previous_ < 0 || !runtime_.HasContext(previous_)) return;
    runtime_.SetCurrentDevice(previous_).IgnoreError();
  }
  ScopedCudaDevice(const ScopedCudaDevice&) = delete;
  ScopedCudaDevice& operator=(const ScopedCudaDevice&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  CudaRuntime& runtime_;
  int previous_ = -1;
  absl::Status status_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_DEVICE_CUDA_RUNTIME_H_
