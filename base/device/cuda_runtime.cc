#include "base/device/cuda_runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "base/device/cuda_status.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Clears an error that does not end the context; otherwise a later, unrelated
// LastError would report it.
absl::Status Checked(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  static_cast<void>(cudaGetLastError());
  return CudaStatus(error, what);
}

cudaStream_t StreamOf(CudaRuntime::Stream stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t EventOf(CudaRuntime::EventHandle event) {
  return static_cast<cudaEvent_t>(event);
}

// Null if the driver does not have the function.
decltype(&cuDevicePrimaryCtxGetState) FindContextState() {
  constexpr const char* kName = "cuDevicePrimaryCtxGetState";
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = {};
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      kName, &function, /*cudaVersion=*/12000, cudaEnableDefault, &found);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint(kName, &function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(function);
}

class NativeRuntime final : public CudaRuntime {
 public:
  absl::StatusOr<CudaVersions> Versions() override {
    CudaVersions versions;
    TESSERA_RETURN_IF_ERROR(Checked(cudaDriverGetVersion(&versions.driver),
                                    "version of the driver"));
    TESSERA_RETURN_IF_ERROR(Checked(cudaRuntimeGetVersion(&versions.runtime),
                                    "version of the CUDA runtime"));
    return versions;
  }

  absl::StatusOr<int> DeviceCount() override {
    int count = 0;
    TESSERA_RETURN_IF_ERROR(
        Checked(cudaGetDeviceCount(&count), "count of CUDA devices"));
    if (count == 0) return CudaStatus(cudaErrorNoDevice, "count of devices");
    return count;
  }

  absl::StatusOr<CudaProperties> Properties(int ordinal) override {
    const std::string what = absl::StrCat("properties of GPU ", ordinal);
    cudaDeviceProp found = {};
    char bus_id[32] = {};
    TESSERA_RETURN_IF_ERROR(
        Checked(cudaGetDeviceProperties(&found, ordinal), what));
    TESSERA_RETURN_IF_ERROR(Checked(
        cudaDeviceGetPCIBusId(bus_id, static_cast<int>(sizeof bus_id), ordinal),
        what));
    return CudaProperties{
        .name = found.name,
        .major = found.major,
        .minor = found.minor,
        .total_bytes = static_cast<int64_t>(found.totalGlobalMem),
        .pci_bus_id = bus_id};
  }

  bool HasContext(int ordinal) override {
    static const auto state = FindContextState();
    unsigned int flags = 0;
    int is_active = 1;
    // The ordinals of the driver and of the runtime are the same.
    if (state != nullptr &&
        state(ordinal, &flags, &is_active) != CUDA_SUCCESS) {
      return false;
    }
    return is_active != 0;
  }

  absl::StatusOr<int> CurrentDevice() override {
    int ordinal = 0;
    TESSERA_RETURN_IF_ERROR(
        Checked(cudaGetDevice(&ordinal), "device of the thread"));
    return ordinal;
  }
  absl::Status SetCurrentDevice(int ordinal) override {
    return Checked(cudaSetDevice(ordinal),
                   absl::StrCat("switch to GPU ", ordinal));
  }

  absl::StatusOr<CudaMemoryUse> MemoryUse() override {
    size_t free = 0, total = 0;
    TESSERA_RETURN_IF_ERROR(
        Checked(cudaMemGetInfo(&free, &total), "free memory of the GPU"));
    return CudaMemoryUse{static_cast<int64_t>(free),
                         static_cast<int64_t>(total)};
  }
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    void* data = nullptr;
    TESSERA_RETURN_IF_ERROR(Checked(
        cudaMalloc(&data, bytes),
        absl::StrCat("allocation of ", bytes, " bytes of device memory")));
    return data;
  }
  absl::Status Free(void* data) override {
    return Checked(cudaFree(data), "free of device memory");
  }
  absl::StatusOr<void*> AllocateHost(size_t bytes) override {
    void* data = nullptr;
    TESSERA_RETURN_IF_ERROR(
        Checked(cudaHostAlloc(&data, bytes, cudaHostAllocPortable),
                absl::StrCat("allocation of ", bytes,
                             " bytes of page-locked host memory")));
    return data;
  }
  absl::Status FreeHost(void* data) override {
    return Checked(cudaFreeHost(data), "free of page-locked host memory");
  }
  absl::Status Pin(void* data, size_t bytes) override {
    return Checked(cudaHostRegister(data, bytes, cudaHostRegisterPortable),
                   "locking of host memory");
  }
  absl::Status Unpin(void* data) override {
    return Checked(cudaHostUnregister(data), "unlocking of host memory");
  }

  absl::StatusOr<Stream> CreateStream() override {
    cudaStream_t stream = nullptr;
    TESSERA_RETURN_IF_ERROR(
        Checked(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0),
                "creation of a stream"));
    return static_cast<Stream>(stream);
  }
  absl::Status DestroyStream(Stream stream) override {
    return Checked(cudaStreamDestroy(StreamOf(stream)), "end of a stream");
  }
  absl::Status SynchronizeStream(Stream stream) override {
    return Checked(cudaStreamSynchronize(StreamOf(stream)),
                   "wait for a stream");
  }
  absl::Status SynchronizeDevice() override {
    return Checked(cudaDeviceSynchronize(), "wait for the device");
  }
  absl::Status CopyAsync(void* target, const void* source, size_t bytes,
                         Stream stream) override {
    return Checked(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault,
                                   StreamOf(stream)),
                   absl::StrCat("copy of ", bytes, " bytes"));
  }
  absl::Status FillAsync(void* target, std::byte value, size_t bytes,
                         Stream stream) override {
    return Checked(cudaMemsetAsync(target, std::to_integer<int>(value), bytes,
                                   StreamOf(stream)),
                   absl::StrCat("fill of ", bytes, " bytes"));
  }
  absl::Status LastError() override {
    return CudaStatus(cudaGetLastError(), "kernel launch");
  }

  absl::StatusOr<EventHandle> CreateEvent() override {
    cudaEvent_t event = nullptr;
    TESSERA_RETURN_IF_ERROR(
        Checked(cudaEventCreateWithFlags(
                    &event, cudaEventDisableTiming | cudaEventBlockingSync),
                "creation of an event"));
    return static_cast<EventHandle>(event);
  }
  absl::Status DestroyEvent(EventHandle event) override {
    return Checked(cudaEventDestroy(EventOf(event)), "end of an event");
  }
  absl::Status RecordEvent(EventHandle event, Stream stream) override {
    return Checked(cudaEventRecord(EventOf(event), StreamOf(stream)),
                   "record of an event");
  }
  absl::Status WaitEvent(Stream stream, EventHandle event) override {
    return Checked(cudaStreamWaitEvent(StreamOf(stream), EventOf(event), 0),
                   "wait of a stream for an event");
  }
  absl::StatusOr<bool> QueryEvent(EventHandle event) override {
    const cudaError_t error = cudaEventQuery(EventOf(event));
    if (error == cudaErrorNotReady) return false;
    TESSERA_RETURN_IF_ERROR(Checked(error, "test of an event"));
    return true;
  }
  absl::Status SynchronizeEvent(EventHandle event) override {
    return Checked(cudaEventSynchronize(EventOf(event)), "wait for an event");
  }

  absl::Status BeginCapture(Stream stream) override {
    return Checked(cudaStreamBeginCapture(StreamOf(stream),
                                          cudaStreamCaptureModeThreadLocal),
                   "begin of a capture");
  }
  absl::StatusOr<Graph> EndCapture(Stream stream) override {
    cudaGraph_t graph = nullptr;
    TESSERA_RETURN_IF_ERROR(Checked(
        cudaStreamEndCapture(StreamOf(stream), &graph), "end of a capture"));
    return static_cast<Graph>(graph);
  }
  absl::Status DestroyGraph(Graph graph) override {
    return Checked(cudaGraphDestroy(static_cast<cudaGraph_t>(graph)),
                   "end of a graph");
  }
  absl::StatusOr<GraphExec> InstantiateGraph(Graph graph) override {
    cudaGraphExec_t exec = nullptr;
    TESSERA_RETURN_IF_ERROR(
        Checked(cudaGraphInstantiate(&exec, static_cast<cudaGraph_t>(graph),
                                     /*flags=*/0),
                "instantiation of a graph"));
    return static_cast<GraphExec>(exec);
  }
  absl::Status DestroyGraphExec(GraphExec exec) override {
    return Checked(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec)),
                   "end of an instantiated graph");
  }
  absl::Status LaunchGraph(GraphExec exec, Stream stream) override {
    return Checked(
        cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec), StreamOf(stream)),
        "launch of a graph");
  }
};

}  // namespace

absl::StatusOr<std::shared_ptr<CudaRuntime>> NativeCudaRuntime() {
  static const std::shared_ptr<CudaRuntime>& runtime =
      *new std::shared_ptr<CudaRuntime>(std::make_shared<NativeRuntime>());
  return runtime;
}

}  // namespace tessera
