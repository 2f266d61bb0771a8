// Segment: one memfd that all ranks of a world map, each with a slice of its
// own.
#ifndef TESSERA_COLLECTIVES_SHARED_MEMORY_SEGMENT_H_
#define TESSERA_COLLECTIVES_SHARED_MEMORY_SEGMENT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"

namespace tessera::collectives {

// A memfd with room for `ranks` slices of at most `slice_bytes`, fewer where
// this process may not have such a file or so many addresses. Sparse: it takes
// no memory yet. Sealed: it keeps its size, so that a mapping stays valid.
absl::StatusOr<UniqueFd> CreateSegmentFile(int64_t ranks, int64_t slice_bytes);

class Segment {
 public:
  Segment() = default;
  ~Segment();
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;

  // Maps all of the file, which `ranks` ranks share.
  static absl::StatusOr<Segment> Map(UniqueFd file, int64_t ranks);

  int fd() const { return file_.get(); }
  std::byte* base() const { return base_; }
  int64_t bytes() const { return bytes_; }

  // Where a rank's slice begins, and its length.
  int64_t SliceStart(int64_t rank) const { return rank * slice_bytes_; }
  int64_t slice_bytes() const { return slice_bytes_; }

 private:
  UniqueFd file_;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
  int64_t slice_bytes_ = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_SEGMENT_H_
