#include "base/device/arena.h"

#include <algorithm>
#include <iterator>

#include "base/status_macros.h"

namespace tessera {
namespace {

// Aligns parts for the widest accesses of the host and the 16-byte ones of
// kernels.
constexpr size_t kAlignment = 256;
// The minimum size of a block.
constexpr size_t kLeastBlock = size_t{4} << 20;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

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
  TESSERA_ASSIGN_OR_RETURN(
      Buffer block,
      Buffer::Allocate(resource_, RoundUp(bytes, kAlignment), kAlignment));
  block_ends_[block.data()] = block.data() + block.size();
  AddFree(block.data(), block.size());
  held_bytes_ += static_cast<int64_t>(block.size());
  blocks_.push_back(std::move(block));
  return absl::OkStatus();
}

absl::StatusOr<void*> Arena::Allocate(size_t bytes, size_t alignment) {
  const std::lock_guard lock(mutex_);
  alignment = std::max(alignment, kAlignment);
  // No device has so much memory, and rounding the size up could overflow.
  if (bytes > size_t{1} << 60) return resource_->Allocate(bytes, alignment);
  const size_t size = RoundUp(bytes, kAlignment);
  if (void* const data = Find(size, alignment)) return data;
  TESSERA_RETURN_IF_ERROR(Grow(std::max(size + alignment, kLeastBlock)));
  return Find(size, alignment);
}

void* Arena::Find(size_t bytes, size_t alignment) {
  for (auto it = free_sizes_.lower_bound({bytes, nullptr});
       it != free_sizes_.end(); ++it) {
    const auto [size, begin] = *it;
    const auto address = reinterpret_cast<uintptr_t>(begin);
    const size_t skipped = RoundUp(address, alignment) - address;
    if (skipped + bytes > size) continue;
    RemoveFree(begin, size);
    if (skipped > 0) AddFree(begin, skipped);
    const size_t rest = size - skipped - bytes;
    if (rest > 0) AddFree(begin + skipped + bytes, rest);
    used_bytes_ += static_cast<int64_t>(bytes);
    return begin + skipped;
  }
  return nullptr;
}

void Arena::Deallocate(void* data, size_t bytes, size_t) {
  const std::lock_guard lock(mutex_);
  auto* begin = static_cast<std::byte*>(data);
  size_t size = RoundUp(bytes, kAlignment);
  used_bytes_ -= static_cast<int64_t>(size);
  const auto block = std::prev(block_ends_.upper_bound(begin));
  const auto next = free_.find(begin + size);
  if (next != free_.end() && next->first != block->second) {
    const size_t more = next->second;
    RemoveFree(begin + size, more);
    size += more;
  }
  const auto after = free_.lower_bound(begin);
  if (after != free_.begin()) {
    const auto [before, length] = *std::prev(after);
    if (before + length == begin && before >= block->first) {
      RemoveFree(before, length);
      begin = before;
      size += length;
    }
  }
  AddFree(begin, size);
}

void Arena::AddFree(std::byte* data, size_t bytes) {
  free_[data] = bytes;
  free_sizes_.insert({bytes, data});
}

void Arena::RemoveFree(std::byte* data, size_t bytes) {
  free_.erase(data);
  free_sizes_.erase({bytes, data});
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
