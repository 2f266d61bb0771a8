#include "base/extent_allocator.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/arithmetic.h"

namespace tessera {
namespace {

absl::Status CannotFree(int64_t start, int64_t bytes, const char* why,
                        int64_t capacity) {
  return absl::InvalidArgumentError(absl::StrCat("cannot free ", bytes,
                                                 " bytes at ", start, ": ", why,
                                                 " (capacity ", capacity, ")"));
}

}  // namespace

ExtentAllocator::ExtentAllocator(int64_t capacity) : capacity_(0) {
  Grow(capacity);
}

void ExtentAllocator::Insert(int64_t start, int64_t end) {
  if (start == end) return;
  by_start_.emplace(start, end);
  by_size_.emplace(end - start, start);
  free_bytes_ += end - start;
}

ExtentAllocator::Extents::iterator ExtentAllocator::Erase(
    Extents::iterator extent) {
  by_size_.erase({extent->second - extent->first, extent->first});
  free_bytes_ -= extent->second - extent->first;
  return by_start_.erase(extent);
}

int64_t ExtentAllocator::largest_free() const {
  return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

int64_t ExtentAllocator::used_end() const {
  if (by_start_.empty()) return capacity_;
  const auto& [start, end] = *by_start_.rbegin();
  return end == capacity_ ? start : capacity_;
}

std::optional<int64_t> ExtentAllocator::Allocate(int64_t bytes,
                                                 int64_t alignment) {
  if (bytes == 0) return 0;
  for (auto fit = by_size_.lower_bound({bytes, 0}); fit != by_size_.end();
       ++fit) {
    const auto [size, free_start] = *fit;
    const int64_t start = RoundUp(free_start, alignment);
    if (start - free_start > size - bytes) continue;
    const int64_t free_end = free_start + size;
    Erase(by_start_.find(free_start));
    Insert(free_start, start);
    Insert(start + bytes, free_end);
    return start;
  }
  return std::nullopt;
}

absl::Status ExtentAllocator::Free(int64_t start, int64_t bytes) {
  if (start < 0 || bytes < 0 || start > capacity_ ||
      bytes > capacity_ - start) {
    return CannotFree(start, bytes, "they lie outside", capacity_);
  }
  if (bytes == 0) return absl::OkStatus();
  int64_t end = start + bytes;
  auto next = by_start_.lower_bound(start);
  const bool has_before = next != by_start_.begin();
  if ((next != by_start_.end() && next->first < end) ||
      (has_before && std::prev(next)->second > start)) {
    return CannotFree(start, bytes, "some are free already", capacity_);
  }
  if (has_before && std::prev(next)->second == start) {
    start = std::prev(next)->first;
    next = Erase(std::prev(next));
  }
  if (next != by_start_.end() && next->first == end) {
    end = next->second;
    Erase(next);
  }
  Insert(start, end);
  return absl::OkStatus();
}

void ExtentAllocator::Grow(int64_t capacity) {
  if (capacity <= capacity_) return;
  int64_t start = capacity_;
  capacity_ = capacity;
  if (!by_start_.empty() && by_start_.rbegin()->second == start) {
    start = by_start_.rbegin()->first;
    Erase(std::prev(by_start_.end()));
  }
  Insert(start, capacity);
}

}  // namespace tessera
