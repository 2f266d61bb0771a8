// AtomicFile: a new file that replaces a path as a whole, or not at all.
//
//   TESSERA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create("plan.json"));
//   TESSERA_RETURN_IF_ERROR(file.Write(0, std::as_bytes(std::span(text))));
//   TESSERA_RETURN_IF_ERROR(file.Commit());
//
// Bytes go to a temporary file beside the path. Commit syncs it, renames it and
// syncs the directory: after a crash the path holds the old bytes or the new
// ones. Of several writers the last rename wins. Symbolic links are followed:
// the file that they refer to is replaced or created, and the links remain. Use
// it on one thread at a time.
//
// A device, a pipe (FIFO), or the file that is this process's standard output
// or standard error cannot be replaced: Write writes to it directly, and Commit
// has nothing to do. Opening a FIFO waits for its reader.
#ifndef TESSERA_BASE_OS_ATOMIC_FILE_H_
#define TESSERA_BASE_OS_ATOMIC_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"

namespace tessera {

class AtomicFile {
 public:
  // Creates the temporary file and reserves `bytes` of disk space. Errors are
  // the system's, with the path; ResourceExhausted if the disk is full,
  // FailedPrecondition if the path is a directory.
  static absl::StatusOr<AtomicFile> Create(const std::string& path,
                                           int64_t bytes = 0);
  AtomicFile(AtomicFile&& other) noexcept { *this = std::move(other); }
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  // Removes the temporary file unless it was committed.
  ~AtomicFile();

  const std::string& path() const { return path_; }
  bool committed() const { return is_committed_; }

  // Writes `bytes` at `offset`, in any order of offsets. FailedPrecondition if
  // the path is written directly and `offset` is not the end of what was
  // written.
  absl::Status Write(int64_t offset, std::span<const std::byte> bytes);

  // Replaces path(), whose mode the new file keeps. Call it once, last. After
  // an error path() holds the old bytes, except if only the sync of the
  // directory failed.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string target, std::string temporary,
             UniqueFd fd)
      : path_(std::move(path)),
        target_(std::move(target)),
        temporary_(std::move(temporary)),
        fd_(std::move(fd)) {}

  std::string path_;
  std::string target_;     // The file that is replaced; empty: none.
  std::string temporary_;  // Empty: nothing to remove.
  UniqueFd fd_;
  int64_t written_ = 0;  // Bytes written directly.
  bool is_committed_ = false;
};

// Makes the entries of a directory durable. Has no effect on file systems that
// cannot sync a directory (EINVAL or ENOTSUP), such as CIFS and some FUSE.
absl::Status SyncDirectory(const std::string& directory);

}  // namespace tessera

#endif  // TESSERA_BASE_OS_ATOMIC_FILE_H_
