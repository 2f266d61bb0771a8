#include "base/tensor/memory.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// More than any processor can address. Beyond this limit rounding could
// overflow, and sanitizers would abort the process.
constexpr size_t kMaxHostBytes = size_t{1} << 56;

class HostMemoryResource final : public MemoryResource {
 public:
  MemoryKind kind() const override { return MemoryKind::kHost; }

  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    void* data = nullptr;
    if (bytes > kMaxHostBytes ||
        posix_memalign(&data, std::max(alignment, sizeof(void*)), bytes) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cannot allocate ", bytes, " bytes of host memory aligned to ",
          alignment, "; free memory or request less"));
    }
    return data;
  }

  void Deallocate(void* data, size_t, size_t) override { std::free(data); }
};

}  // namespace

std::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kPinnedHost:
      return "pinned_host";
    case MemoryKind::kDevice:
      return "device";
  }
  return "invalid";
}

std::shared_ptr<MemoryResource> HostMemory() {
  // Stateless and never destroyed, so that buffers may outlive main().
  static const auto& resource = *new std::shared_ptr<MemoryResource>(
      std::make_shared<HostMemoryResource>());
  return resource;
}

absl::StatusOr<Buffer> Buffer::Allocate(
    std::shared_ptr<MemoryResource> resource, size_t bytes, size_t alignment) {
  if (resource == nullptr) {
    return absl::InvalidArgumentError(
        "buffer without a memory resource; give HostMemory() or another");
  }
  if (!std::has_single_bit(alignment)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "alignment of ", alignment, " bytes; expected a power of two"));
  }
  Buffer buffer;
  buffer.resource_ = std::move(resource);
  buffer.alignment_ = std::max(alignment, kDefaultAlignment);
  if (bytes == 0) return buffer;
  TESSERA_ASSIGN_OR_RETURN(
      void* data, buffer.resource_->Allocate(bytes, buffer.alignment_));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_ = bytes;
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  resource_ = std::exchange(other.resource_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  alignment_ = std::exchange(other.alignment_, kDefaultAlignment);
  return *this;
}

void Buffer::Release() {
  if (data_ != nullptr) resource_->Deallocate(data_, size_, alignment_);
}

}  // namespace tessera
