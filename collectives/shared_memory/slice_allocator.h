// SliceAllocator: memory from one rank's slice of a segment.
//
// Pages are reserved with fallocate before they are given out, so that a lack
// of memory is an error here and never a SIGBUS later; large ones go back to
// the machine when they are freed. Everything is zero when it is given out.
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_SHARED_MEMORY_SLICE_ALLOCATOR_H_
#define TESSERA_COLLECTIVES_SHARED_MEMORY_SLICE_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::collectives {

class SliceAllocator {
 public:
  // Bytes [first, last) of the file `fd`, which is mapped at `base` and stays
  // so. At most `limit` bytes of it are reserved at a time. `first` is the
  // beginning of a page.
  SliceAllocator(int fd, std::byte* base, int64_t first, int64_t last,
                 int64_t limit);

  // `bytes` (at least 1) bytes, aligned to 64; from 256 KiB on to pages, from 2
  // MiB on whole huge pages after `first`. ResourceExhausted where the slice,
  // the limit or the machine's memory does not have them, naming how much is
  // held and free.
  absl::StatusOr<std::byte*> Allocate(int64_t bytes);
  void Free(std::byte* memory);

  // What is reserved at present.
  int64_t reserved_bytes() const;

 private:
  absl::StatusOr<int64_t> AllocateSmall(int64_t bytes);
  absl::StatusOr<int64_t> AllocateLarge(int64_t bytes);
  absl::Status Reserve(int64_t offset, int64_t bytes);
  void Return(int64_t offset, int64_t bytes);

  const int fd_;
  std::byte* const base_;
  const int64_t first_;
  const int64_t limit_;

  mutable std::mutex mutex_;
  int64_t reserved_ = 0;
  std::map<int64_t, int64_t> free_ranges_;  // Offset: length; never adjacent.
  std::map<int64_t, int64_t> used_;         // Offset: length.
  // Small ones: freed, by length; and what is left of the newest arena.
  std::map<int64_t, std::vector<int64_t>> free_small_;
  int64_t arena_next_ = 0;
  int64_t arena_end_ = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_SLICE_ALLOCATOR_H_
