// ExtentAllocator: allocates ranges of bytes of an address space.
//
//   ExtentAllocator allocator(1 << 20);
//   std::optional<int64_t> at = allocator.Allocate(4096, 4096);
//   allocator.Free(*at, 4096);
//
// Best fit: uses the front of the smallest free extent that fits, and among
// equals the lowest; sizes are exact, never rounded. Adjacent free extents are
// merged. O(log n), plus the number of extents that are large enough but do not
// fit the alignment. Pure arithmetic without memory or files. Not safe for
// concurrent use.
#ifndef TESSERA_BASE_EXTENT_ALLOCATOR_H_
#define TESSERA_BASE_EXTENT_ALLOCATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"

namespace tessera {

class ExtentAllocator {
 public:
  // Starts with [0, capacity) free. `capacity` is at least 0.
  explicit ExtentAllocator(int64_t capacity);

  int64_t capacity() const { return capacity_; }
  int64_t free_bytes() const { return free_bytes_; }
  // The number of free extents, and the size of the largest.
  int64_t fragments() const { return static_cast<int64_t>(by_start_.size()); }
  int64_t largest_free() const;
  // The end of the last used byte; 0 if none is used.
  int64_t used_end() const;

  // Allocates `bytes` bytes and returns their start, a multiple of `alignment`
  // (a power of two). nullopt if no free extent fits. Zero bytes start at 0 and
  // use no space.
  std::optional<int64_t> Allocate(int64_t bytes, int64_t alignment);

  // Frees bytes. Parts of an allocation may be freed separately.
  // InvalidArgument, without side effects, if any byte is free or outside.
  absl::Status Free(int64_t start, int64_t bytes);

  // Adds free bytes at the end; `capacity` must not be smaller than before.
  void Grow(int64_t capacity);

 private:
  using Extents = std::map<int64_t, int64_t>;  // start -> end

  void Insert(int64_t start, int64_t end);
  Extents::iterator Erase(Extents::iterator extent);

  int64_t capacity_;
  int64_t free_bytes_ = 0;
  Extents by_start_;
  std::set<std::pair<int64_t, int64_t>> by_size_;  // size, start
};

}  // namespace tessera

#endif  // TESSERA_BASE_EXTENT_ALLOCATOR_H_
