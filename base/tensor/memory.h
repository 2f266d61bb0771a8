// MemoryResource allocates memory, and Buffer owns an allocation.
//
//   TESSERA_ASSIGN_OR_RETURN(Buffer buffer,
//                            Buffer::Allocate(HostMemory(), 1 << 20));
//   std::memset(buffer.data(), 0, buffer.size());
//
// Devices (base/device/device.h) provide the resources for pinned and device
// memory.
#ifndef TESSERA_BASE_TENSOR_MEMORY_H_
#define TESSERA_BASE_TENSOR_MEMORY_H_

#include <cstddef>
#include <memory>
#include <ostream>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

enum class MemoryKind {
  kHost,        // ordinary memory of the process
  kPinnedHost,  // page-locked: devices copy from and to it at full speed
  kDevice,      // the CPU cannot read or write it
};

// "host", "pinned_host", "device".
std::string_view MemoryKindName(MemoryKind kind);

constexpr bool IsHostAccessible(MemoryKind kind) {
  return kind != MemoryKind::kDevice;
}

inline std::ostream& operator<<(std::ostream& os, MemoryKind kind) {
  return os << MemoryKindName(kind);
}

// A cache line, and the widest vector register.
inline constexpr size_t kDefaultAlignment = 64;

// Allocates memory of one kind on one device. Thread-safe.
class MemoryResource {
 public:
  virtual ~MemoryResource() = default;

  virtual MemoryKind kind() const = 0;
  // The CUDA device of this memory; -1 for host memory.
  virtual int device_ordinal() const { return -1; }

  // At least `bytes` bytes, uninitialised, at a multiple of `alignment`.
  // `bytes` is positive, `alignment` a power of two. ResourceExhausted if there
  // is not enough memory.
  virtual absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) = 0;

  // Frees memory returned by Allocate for the same `bytes` and `alignment`.
  // Errors are ignored.
  virtual void Deallocate(void* data, size_t bytes, size_t alignment) = 0;
};

// The ordinary memory of this process. Huge requests fail without an attempt to
// allocate.
std::shared_ptr<MemoryResource> HostMemory();

// Owns one allocation and frees it on destruction. Move-only; a moved-from or
// default-constructed Buffer is empty, with no resource and of kind kHost.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { Release(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;

  // Allocates uninitialised memory. For zero bytes data() is null. The
  // alignment is at least 64. InvalidArgument if `resource` is null or
  // `alignment` is not a power of two; else the resource's errors.
  static absl::StatusOr<Buffer> Allocate(
      std::shared_ptr<MemoryResource> resource, size_t bytes,
      size_t alignment = kDefaultAlignment);

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  const std::shared_ptr<MemoryResource>& resource() const { return resource_; }
  MemoryKind kind() const {
    return resource_ == nullptr ? MemoryKind::kHost : resource_->kind();
  }
  int device_ordinal() const {
    return resource_ == nullptr ? -1 : resource_->device_ordinal();
  }

 private:
  void Release();

  std::shared_ptr<MemoryResource> resource_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t alignment_ = kDefaultAlignment;
};

}  // namespace tessera

#endif  // TESSERA_BASE_TENSOR_MEMORY_H_
