#include "collectives/shared_memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kSmallestSlice = 16 << 20;
constexpr int64_t kSliceStep = 2 << 20;  // A huge page.

int64_t Limit(int resource) {
  rlimit limit;
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<int64_t>::max();
  }
  return static_cast<int64_t>(
      std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
}

absl::Status Failed(std::string_view what) {
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory: ", what, ": ", std::strerror(errno)));
}

void* MapFile(int fd, int64_t bytes) {
  return mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_NORESERVE, fd, 0);
}

// Whether this process can map so much.
bool CanMap(int fd, int64_t bytes) {
  void* const mapped = MapFile(fd, bytes);
  if (mapped == MAP_FAILED) return false;
  munmap(mapped, static_cast<size_t>(bytes));
  return true;
}

}  // namespace

absl::StatusOr<UniqueFd> CreateSegmentFile(int64_t ranks, int64_t slice_bytes) {
  UniqueFd file(memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return Failed("memfd_create");
  // A file beyond RLIMIT_FSIZE would be a signal, not an error.
  const int64_t most =
      std::min(Limit(RLIMIT_FSIZE), Limit(RLIMIT_AS) / 4) / ranks;
  int64_t slice = std::min(slice_bytes, most) / kSliceStep * kSliceStep;
  for (; slice >= kSmallestSlice; slice = slice / 2 / kSliceStep * kSliceStep) {
    if (ftruncate(file.get(), ranks * slice) != 0) continue;
    if (!CanMap(file.get(), ranks * slice)) continue;
    if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
      return Failed("sealing the segment");
    }
    return file;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "shared memory: this process cannot map ", ranks, " slices of ",
      ByteSize(kSmallestSlice).ToString(),
      "; look at the limits of addresses and file sizes (ulimit -v, -f)"));
}

absl::StatusOr<Segment> Segment::Map(UniqueFd file, int64_t ranks) {
  struct stat status;
  if (fstat(file.get(), &status) != 0) return Failed("fstat of the segment");
  Segment segment;
  void* const mapped = MapFile(file.get(), status.st_size);
  if (mapped == MAP_FAILED) {
    return Failed(
        absl::StrCat("mapping ", ByteSize(status.st_size).ToString()));
  }
  // A core file need not hold all ranks' tensors.
  madvise(mapped, static_cast<size_t>(status.st_size), MADV_DONTDUMP);
  segment.file_ = std::move(file);
  segment.base_ = static_cast<std::byte*>(mapped);
  segment.bytes_ = status.st_size;
  segment.slice_bytes_ = segment.bytes_ / ranks;
  return segment;
}

Segment::~Segment() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(slice_bytes_, other.slice_bytes_);
  return *this;
}

}  // namespace tessera::collectives
