// ExtentAllocator: which parts of a line of bytes are free.
//
//   ExtentAllocator allocator(1 << 20);
//   std::optional<int64_t> at = allocator.Allocate(4096, 4096);
//   allocator.Free(*at, 4096);
//
// Gives the smallest free extent that fits, the lowest of equals, cut at its
// front; sizes are exact, never rounded. Neighbours that are free become one.
// O(log n) but for the extents that are large enough and lie badly for the
// alignment. Pure arithmetic: it holds no memory and no file. Not safe for
// concurrent use.
#ifndef TESSERA_OFFLOAD_TIER_EXTENT_ALLOCATOR_H_
#define TESSERA_OFFLOAD_TIER_EXTENT_ALLOCATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"

namespace tessera::offload {

class ExtentAllocator {
 public:
  // `capacity` bytes from 0 on, all free; at least 0.
  explicit ExtentAllocator(int64_t capacity);

  int64_t capacity() const { return capacity_; }
  int64_t free_bytes() const { return free_bytes_; }
  // Free extents, and the longest of them.
  int64_t fragments() const { return static_cast<int64_t>(by_start_.size()); }
  int64_t largest_free() const;
  // Where the last used byte ends; 0 where none is used.
  int64_t used_end() const;

  // The start, a multiple of `alignment` (a power of two), of `bytes` bytes
  // that now are used. Nothing where no free extent fits. Zero bytes are at 0
  // and use nothing.
  std::optional<int64_t> Allocate(int64_t bytes, int64_t alignment);

  // `bytes` bytes at `start` become used, as when a file is opened again.
  // InvalidArgument, with nothing changed, where one of them is used already
  // or lies outside.
  absl::Status Claim(int64_t start, int64_t bytes);

  // Gives back. Parts of what was allocated at once may be given back alone.
  // InvalidArgument, with nothing changed, where one of them is free already
  // or lies outside.
  absl::Status Free(int64_t start, int64_t bytes);

  // More bytes at the end; never fewer.
  void Grow(int64_t capacity);

 private:
  using Extents = std::map<int64_t, int64_t>;  // start -> end

  void Insert(int64_t start, int64_t end);
  Extents::iterator Erase(Extents::iterator extent);
  void Take(Extents::iterator extent, int64_t start, int64_t end);

  int64_t capacity_;
  int64_t free_bytes_ = 0;
  Extents by_start_;
  std::set<std::pair<int64_t, int64_t>> by_size_;  // size, start
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_EXTENT_ALLOCATOR_H_
