#include "base/device/arena.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/arithmetic.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// Aligns parts for the widest accesses of the host and the 16-byte ones of
// kernels.
constexpr size_t kAlignment = 256;
// The minimum size of a block.
constexpr size_t kLeastBlock = size_t{4} << 20;

constexpr int64_t kAddresses = std::numeric_limits<int64_t>::max();

}  // namespace

Arena::Arena(std::shared_ptr<MemoryResource> resource)
    : resource_(std::move(resource)), addresses_(kAddresses) {
  addresses_.Allocate(kAddresses, 1);
}

absl::StatusOr<std::shared_ptr<Arena>> Arena::Create(
    std::shared_ptr<MemoryResource> resource, size_t bytes) {
  std::shared_ptr<Arena> arena(new Arena(std::move(resource)));
  if (bytes > 0) {
    const std::lock_guard lock(arena->mutex_);
    TESSERA_RETURN_IF_ERROR(arena->Grow(bytes));
  }
  return arena;
}

absl::Status Arena::Grow(size_t bytes) {
  const size_t usable = RoundUp(bytes, kAlignment);
  // The bytes at the end are never used: parts are not merged with the next
  // block's.
  TESSERA_ASSIGN_OR_RETURN(
      Buffer block,
      Buffer::Allocate(resource_, usable + kAlignment, kAlignment));
  TESSERA_RETURN_IF_ERROR(addresses_.Free(
      reinterpret_cast<int64_t>(block.data()), static_cast<int64_t>(usable)));
  held_bytes_ += static_cast<int64_t>(block.size());
  blocks_.push_back(std::move(block));
  return absl::OkStatus();
}

absl::StatusOr<void*> Arena::Allocate(size_t bytes, size_t alignment) {
  const std::lock_guard lock(mutex_);
  alignment = std::max(alignment, kAlignment);
  // No device has so much memory, and rounding the size up could overflow.
  if (bytes > size_t{1} << 60) return resource_->Allocate(bytes, alignment);
  const auto size = static_cast<int64_t>(RoundUp(bytes, kAlignment));
  const auto aligned = static_cast<int64_t>(alignment);
  std::optional<int64_t> address = addresses_.Allocate(size, aligned);
  if (!address) {
    TESSERA_RETURN_IF_ERROR(
        Grow(std::max(RoundUp(bytes, kAlignment) + alignment, kLeastBlock)));
    address = addresses_.Allocate(size, aligned);
  }
  used_bytes_ += size;
  return reinterpret_cast<void*>(*address);
}

void Arena::Deallocate(void* data, size_t bytes, size_t) {
  const std::lock_guard lock(mutex_);
  const auto size = static_cast<int64_t>(RoundUp(bytes, kAlignment));
  addresses_.Free(reinterpret_cast<int64_t>(data), size).IgnoreError();
  used_bytes_ -= size;
}

int64_t Arena::blocks() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(blocks_.size());
}

int64_t Arena::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

int64_t Arena::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

}  // namespace tessera
