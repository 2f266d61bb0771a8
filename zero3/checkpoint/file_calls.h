// FileCalls: the system calls that change files and directories, behind an
// interface so that tests can simulate a crash at each of them.
//
//   FileCalls& calls = FileCalls::System();
//   TESSERA_ASSIGN_OR_RETURN(const int fd, calls.Create("/ckpt/new"));
//   TESSERA_RETURN_IF_ERROR(calls.Write(fd, bytes, 0, "/ckpt/new"));
//   TESSERA_RETURN_IF_ERROR(calls.Sync(fd, "/ckpt/new"));
//
// Errors are the system's, with the path; a full device or an exceeded limit is
// ResourceExhausted. A process with a limit on the size of its files must
// ignore SIGXFSZ to receive that error. Thread-safe.
#ifndef TESSERA_ZERO3_CHECKPOINT_FILE_CALLS_H_
#define TESSERA_ZERO3_CHECKPOINT_FILE_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::zero3 {

class FileCalls {
 public:
  virtual ~FileCalls() = default;

  // The real system calls.
  static FileCalls& System();

  // Creates a file and opens it for writing; AlreadyExists if it exists.
  virtual absl::StatusOr<int> Create(const std::string& path) = 0;
  // Appends all of `bytes` to the file, whose end is at `offset`.
  virtual absl::Status Write(int fd, std::span<const std::byte> bytes,
                             int64_t offset, const std::string& path) = 0;
  virtual absl::Status Sync(int fd, const std::string& path) = 0;
  // Closes the file even if it returns an error.
  virtual absl::Status Close(int fd, const std::string& path) = 0;
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // Precondition: `to` does not exist or is a file.
  virtual absl::Status Rename(const std::string& from,
                              const std::string& to) = 0;
  // Atomically exchanges the names of two existing paths. FailedPrecondition if
  // the file system does not support it.
  virtual absl::Status Exchange(const std::string& a, const std::string& b) = 0;
  virtual absl::Status RemoveFile(const std::string& path) = 0;
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;
};

// The names in a directory without "." and "..", sorted.
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_FILE_CALLS_H_
