#include "base/device/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/device/cuda_status.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// The minimum alignment of cudaMalloc and cudaHostAlloc.
constexpr size_t kCudaAlignment = 256;

absl::Status CheckAlignment(size_t alignment, MemoryKind kind) {
  if (alignment <= kCudaAlignment) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "alignment of ", alignment, " bytes in ", MemoryKindName(kind),
      " memory; expected at most ", kCudaAlignment));
}

absl::Status ExhaustedOr(cudaError_t error, size_t bytes, MemoryKind kind) {
  if (error == cudaErrorMemoryAllocation) cudaGetLastError();  // Not sticky.
  return CudaStatus(error, absl::StrCat("allocation of ", bytes, " bytes of ",
                                        MemoryKindName(kind), " memory"));
}

// Makes a device the calling thread's current one for a scope.
class ScopedDevice {
 public:
  explicit ScopedDevice(int ordinal) {
    error_ = cudaGetDevice(&previous_);
    if (error_ == cudaSuccess && previous_ != ordinal) {
      error_ = cudaSetDevice(ordinal);
      changed_ = error_ == cudaSuccess;
    }
  }
  ~ScopedDevice() {
    if (changed_) cudaSetDevice(previous_);
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  cudaError_t error() const { return error_; }

 private:
  int previous_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

class DeviceMemory final : public MemoryResource {
 public:
  explicit DeviceMemory(int ordinal) : ordinal_(ordinal) {}

  MemoryKind kind() const override { return MemoryKind::kCudaDevice; }
  int device_ordinal() const override { return ordinal_; }

  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    TESSERA_RETURN_IF_ERROR(CheckAlignment(alignment, kind()));
    const ScopedDevice device(ordinal_);
    TESSERA_RETURN_IF_ERROR(CudaStatus(
        device.error(), absl::StrCat("switch to CUDA device ", ordinal_)));
    void* data = nullptr;
    TESSERA_RETURN_IF_ERROR(
        ExhaustedOr(cudaMalloc(&data, bytes), bytes, kind()),
        Annotate(_, absl::StrCat("CUDA device ", ordinal_)));
    return data;
  }

  void Deallocate(void* data, size_t, size_t) override {
    const ScopedDevice device(ordinal_);
    cudaFree(data);
  }

 private:
  const int ordinal_;
};

class PinnedMemory final : public MemoryResource {
 public:
  MemoryKind kind() const override { return MemoryKind::kPinnedHost; }

  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    TESSERA_RETURN_IF_ERROR(CheckAlignment(alignment, kind()));
    void* data = nullptr;
    TESSERA_RETURN_IF_ERROR(ExhaustedOr(
        cudaHostAlloc(&data, bytes, cudaHostAllocPortable), bytes, kind()));
    return data;
  }

  void Deallocate(void* data, size_t, size_t) override { cudaFreeHost(data); }
};

absl::Status CheckOrdinal(int ordinal) {
  TESSERA_ASSIGN_OR_RETURN(const int count, CudaDeviceCount());
  if (ordinal >= 0 && ordinal < count) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("CUDA device ", ordinal, "; expected 0 to ", count - 1));
}

// An error of these calls does not stay for later ones.
absl::Status OfHostMemory(cudaError_t error, const char* what) {
  if (error != cudaSuccess) cudaGetLastError();
  return CudaStatus(error, what);
}

}  // namespace

absl::StatusOr<int> CudaDeviceCount() {
  int count = 0;
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceCount(&count), "count of CUDA devices"));
  if (count == 0) return CudaStatus(cudaErrorNoDevice, "count of CUDA devices");
  return count;
}

absl::StatusOr<std::shared_ptr<MemoryResource>> CudaDeviceMemory(int ordinal) {
  TESSERA_RETURN_IF_ERROR(CheckOrdinal(ordinal));
  return std::make_shared<DeviceMemory>(ordinal);
}

absl::StatusOr<std::shared_ptr<MemoryResource>> PinnedHostMemory() {
  TESSERA_RETURN_IF_ERROR(CudaDeviceCount().status());
  return std::make_shared<PinnedMemory>();
}

absl::Status CudaPin(void* data, size_t bytes) {
  TESSERA_RETURN_IF_ERROR(CudaDeviceCount().status());
  return OfHostMemory(cudaHostRegister(data, bytes, cudaHostRegisterPortable),
                      "locking of host memory");
}

absl::Status CudaUnpin(void* data) {
  TESSERA_RETURN_IF_ERROR(CudaDeviceCount().status());
  return OfHostMemory(cudaHostUnregister(data), "unlocking of host memory");
}

absl::StatusOr<CudaMemoryUse> CudaMemoryUseOf(int ordinal) {
  TESSERA_RETURN_IF_ERROR(CheckOrdinal(ordinal));
  const ScopedDevice device(ordinal);
  const std::string what = absl::StrCat("free memory of CUDA device ", ordinal);
  TESSERA_RETURN_IF_ERROR(CudaStatus(device.error(), what));
  size_t free = 0, total = 0;
  TESSERA_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), what));
  return CudaMemoryUse{static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

absl::Status CudaCopyBytes(void* target, const void* source, size_t bytes) {
  TESSERA_RETURN_IF_ERROR(CudaDeviceCount().status());
  if (bytes == 0) return absl::OkStatus();
  const std::string what = absl::StrCat("CUDA copy of ", bytes, " bytes");
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault,
                                 cudaStreamPerThread),
                 what));
  return CudaStatus(cudaStreamSynchronize(cudaStreamPerThread), what);
}

}  // namespace tessera
