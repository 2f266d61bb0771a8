#include "collectives/shared_memory/slice_allocator.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kPage = 4096;
constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kLarge = 256 << 10;
constexpr int64_t kArena = 1 << 20;

int64_t RoundUp(int64_t bytes, int64_t step) {
  return (bytes + step - 1) / step * step;
}

int64_t FreeMemory() {
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

SliceAllocator::SliceAllocator(int fd, std::byte* base, int64_t first,
                               int64_t last, int64_t limit)
    : fd_(fd), base_(base), first_(first), limit_(limit) {
  free_ranges_[first] = last - first;
}

int64_t SliceAllocator::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  return reserved_;
}

absl::StatusOr<std::byte*> SliceAllocator::Allocate(int64_t bytes) {
  if (bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory of ", bytes, " bytes"));
  }
  const std::lock_guard lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const int64_t offset,
                           bytes < kLarge
                               ? AllocateSmall(RoundUp(bytes, kLine))
                               : AllocateLarge(RoundUp(bytes, kPage)));
  return base_ + offset;
}

absl::StatusOr<int64_t> SliceAllocator::AllocateSmall(int64_t bytes) {
  std::vector<int64_t>& freed = free_small_[bytes];
  if (!freed.empty()) {
    const int64_t offset = freed.back();
    freed.pop_back();
    std::memset(base_ + offset, 0, static_cast<size_t>(bytes));
    used_[offset] = bytes;
    return offset;
  }
  if (arena_end_ - arena_next_ < bytes) {
    // What is left of the old arena is too little to be worth keeping.
    TESSERA_ASSIGN_OR_RETURN(arena_next_, AllocateLarge(kArena));
    used_.erase(arena_next_);
    arena_end_ = arena_next_ + kArena;
  }
  const int64_t offset = arena_next_;
  arena_next_ += bytes;
  used_[offset] = bytes;
  return offset;
}

absl::StatusOr<int64_t> SliceAllocator::AllocateLarge(int64_t bytes) {
  const int64_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  for (const auto& [start, length] : free_ranges_) {
    const int64_t offset = first_ + RoundUp(start - first_, alignment);
    if (offset + bytes > start + length) continue;
    TESSERA_RETURN_IF_ERROR(Reserve(offset, bytes));
    const int64_t range_start = start;
    const int64_t range_end = start + length;
    free_ranges_.erase(range_start);
    if (offset > range_start) free_ranges_[range_start] = offset - range_start;
    if (range_end > offset + bytes) {
      free_ranges_[offset + bytes] = range_end - offset - bytes;
    }
    used_[offset] = bytes;
    return offset;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "shared memory: no ", ByteSize(bytes).ToString(),
      " in one piece are left in this rank's slice of the segment, of which ",
      ByteSize(reserved_).ToString(), " are used"));
}

absl::Status SliceAllocator::Reserve(int64_t offset, int64_t bytes) {
  if (bytes > limit_ - reserved_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "shared memory: ", ByteSize(bytes).ToString(), " are asked for, ",
        ByteSize(limit_ - reserved_).ToString(), " of this rank's limit of ",
        ByteSize(limit_).ToString(), " are left"));
  }
  int result = 0;
  do {
    result = fallocate(fd_, 0, offset, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    const int error = errno;
    // What it had reserved before it failed.
    Return(offset, bytes);
    return absl::ResourceExhaustedError(
        absl::StrCat("shared memory: the machine has no ",
                     ByteSize(bytes).ToString(), " (", std::strerror(error),
                     "); this rank holds ", ByteSize(reserved_).ToString(),
                     ", ", ByteSize(FreeMemory()).ToString(), " are free"));
  }
  reserved_ += bytes;
  return absl::OkStatus();
}

void SliceAllocator::Return(int64_t offset, int64_t bytes) {
  // Where this fails, the memory stays reserved until the segment goes.
  static_cast<void>(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              offset, bytes));
}

void SliceAllocator::Free(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(memory - base_);
  if (used == used_.end()) return;
  int64_t offset = used->first;
  int64_t bytes = used->second;
  used_.erase(used);
  if (bytes < kLarge) {
    free_small_[bytes].push_back(offset);
    return;
  }
  Return(offset, bytes);
  reserved_ -= bytes;
  const auto next = free_ranges_.lower_bound(offset);
  if (next != free_ranges_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      free_ranges_.erase(previous);
    }
  }
  if (next != free_ranges_.end() && offset + bytes == next->first) {
    bytes += next->second;
    free_ranges_.erase(next);
  }
  free_ranges_[offset] = bytes;
}

}  // namespace tessera::collectives
