// FileSpace: allocates ranges of a file and grows it.
//
//   TESSERA_ASSIGN_OR_RETURN(auto extent, space->Allocate(bytes));
//   file.Write(extent->offset(), ...);
//
// Space is allocated on the device before it is used (fallocate), so that a
// full device is an error here and not in the middle of a write. Freed extents
// are reused before the file grows.
#ifndef TESSERA_OFFLOAD_FILE_FILE_SPACE_H_
#define TESSERA_OFFLOAD_FILE_FILE_SPACE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/extent_allocator.h"

namespace tessera::offload {

class FileSpace;

// A range of the file, which is in use during the lifetime of the object.
class FileExtent {
 public:
  FileExtent(std::shared_ptr<FileSpace> space, int64_t offset, int64_t bytes)
      : space_(std::move(space)), offset_(offset), bytes_(bytes) {}
  ~FileExtent();
  FileExtent(const FileExtent&) = delete;
  FileExtent& operator=(const FileExtent&) = delete;

  int64_t offset() const { return offset_; }
  int64_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<FileSpace> space_;
  const int64_t offset_;
  const int64_t bytes_;
};

// Safe for concurrent use.
class FileSpace : public std::enable_shared_from_this<FileSpace> {
 public:
  // Offsets and sizes of extents are multiples of this.
  static constexpr int64_t kUnit = 4096;

  struct Options {
    int64_t initial_bytes = 0;  // allocated at once
    int64_t growth_bytes = int64_t{64} << 20;
    int64_t max_bytes = std::numeric_limits<int64_t>::max();
  };

  // `fd`, an empty file, must outlive it.
  static absl::StatusOr<std::shared_ptr<FileSpace>> Create(int fd,
                                                           std::string path,
                                                           Options options);

  // Allocates at least `bytes` bytes (none for 0). ResourceExhausted, with the
  // file and the offset and without side effects, if the device is full or
  // max_bytes would be exceeded.
  absl::StatusOr<std::shared_ptr<const FileExtent>> Allocate(int64_t bytes);

  int64_t file_bytes() const;

 private:
  friend class FileExtent;

  FileSpace(int fd, std::string path, Options options)
      : fd_(fd), path_(std::move(path)), options_(options), extents_(0) {}
  void Free(int64_t offset, int64_t bytes);
  absl::Status Grow(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Extend(int64_t capacity) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int fd_;
  const std::string path_;
  const Options options_;
  mutable absl::Mutex mutex_;
  ExtentAllocator extents_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_FILE_FILE_SPACE_H_
