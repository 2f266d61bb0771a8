#include "offload/file/file_space.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/arithmetic.h"
#include "base/status_macros.h"
#include "offload/file/async_file.h"

namespace tessera::offload {
namespace {

// Far from overflow, and beyond the limit of any file system.
constexpr int64_t kLargest = int64_t{1} << 60;

}  // namespace

FileExtent::~FileExtent() { space_->Free(offset_, bytes_); }

absl::StatusOr<std::shared_ptr<FileSpace>> FileSpace::Create(int fd,
                                                             std::string path,
                                                             Options options) {
  if (options.initial_bytes < 0 || options.growth_bytes < 0 ||
      options.max_bytes < 0 || options.initial_bytes > options.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "file ", path, ": initial size ", options.initial_bytes, ", growth ",
        options.growth_bytes, ", largest size ", options.max_bytes,
        "; they must not be negative, and the first must be at most the last"));
  }
  std::shared_ptr<FileSpace> space(new FileSpace(fd, std::move(path), options));
  absl::MutexLock lock(&space->mutex_);
  const int64_t initial =
      RoundUp(std::min(options.initial_bytes, kLargest), kUnit);
  if (initial > 0) TESSERA_RETURN_IF_ERROR(space->Extend(initial));
  return space;
}

absl::StatusOr<std::shared_ptr<const FileExtent>> FileSpace::Allocate(
    int64_t bytes) {
  if (bytes < 0 || bytes > kLargest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "file ", path_, ": an extent of ", bytes, " bytes; 0 to ", kLargest));
  }
  const int64_t size = RoundUp(bytes, kUnit);
  absl::MutexLock lock(&mutex_);
  std::optional<int64_t> start = extents_.Allocate(size, kUnit);
  if (!start.has_value()) {
    TESSERA_RETURN_IF_ERROR(Grow(size));
    start = extents_.Allocate(size, kUnit);
  }
  if (!start.has_value()) {
    return absl::InternalError(
        absl::StrCat("file ", path_, " grew, but has no ", size, " bytes"));
  }
  return std::make_shared<const FileExtent>(shared_from_this(), *start, size);
}

// Adds contiguous space for `bytes`: a growth step, or only the required space
// if the device has no more.
absl::Status FileSpace::Grow(int64_t bytes) {
  const int64_t capacity = extents_.capacity();
  const int64_t needed = extents_.used_end() + bytes;
  if (needed > options_.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "file ", path_, " has ", capacity, " bytes, ", extents_.free_bytes(),
        " of them free (", extents_.largest_free(), " in a row); ", bytes,
        " more would exceed its largest size of ", options_.max_bytes,
        ". Drop blocks, or raise it"));
  }
  const int64_t step = std::min(options_.growth_bytes, kLargest);
  const int64_t wanted =
      std::min(RoundUp(std::max(needed, capacity + step), kUnit),
               options_.max_bytes / kUnit * kUnit);
  if (wanted > needed && Extend(wanted).ok()) return absl::OkStatus();
  return Extend(needed);
}

absl::Status FileSpace::Extend(int64_t capacity) {
  const int64_t from = extents_.capacity();
  int error = 0;
  if (fallocate(fd_, 0, from, capacity - from) != 0) {
    error = errno;
    if (error == EOPNOTSUPP) {
      error = ftruncate(fd_, capacity) == 0 ? 0 : errno;
    }
  }
  if (error != 0) {
    return IoError(error, "allocation", capacity - from, from, path_);
  }
  extents_.Grow(capacity);
  return absl::OkStatus();
}

void FileSpace::Free(int64_t offset, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  extents_.Free(offset, bytes).IgnoreError();
}

int64_t FileSpace::file_bytes() const {
  absl::MutexLock lock(&mutex_);
  return extents_.capacity();
}

}  // namespace tessera::offload
