#include "base/os/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"

namespace tessera {
namespace {

absl::Status SystemError(int error, std::string_view action,
                         const std::string& path) {
  return absl::ErrnoToStatus(
      error, absl::StrCat("cannot ", action, " ", QuotedPath(path)));
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Creates a file next to `path` with the lowest unused number in its name.
UniqueFd OpenNew(const std::string& path, std::string* name) {
  for (int64_t number = 0;; ++number) {
    *name = absl::StrCat(path, ".", getpid(), ".", number, ".tmp");
    const int fd =
        open(name->c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST) return UniqueFd(fd);
  }
}

// Reserves disk space if the file system supports it; otherwise only sets the
// length. Returns an errno or 0.
int Reserve(int fd, int64_t bytes) {
  if (bytes == 0) return 0;
  const int error = posix_fallocate(fd, 0, bytes);
  if (error != EOPNOTSUPP && error != EINVAL) return error;
  return ftruncate(fd, bytes) == 0 ? 0 : errno;
}

}  // namespace

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& path,
                                              int64_t bytes) {
  std::string temporary;
  UniqueFd fd = OpenNew(path, &temporary);
  if (!fd.valid()) {
    return SystemError(errno, "make a new file beside", path);
  }
  AtomicFile file(path, std::move(temporary), std::move(fd));
  if (const int error = Reserve(file.fd_.get(), bytes); error != 0) {
    return SystemError(error, absl::StrCat("reserve ", bytes, " bytes for"),
                       path);
  }
  return file;
}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status AtomicFile::Write(int64_t offset,
                               std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(errno, "write", path_);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  struct stat old_file;
  if (stat(path_.c_str(), &old_file) == 0 &&
      fchmod(fd_.get(), old_file.st_mode & 07777) != 0) {
    return SystemError(errno, "keep the mode of", path_);
  }
  if (fsync(fd_.get()) != 0) return SystemError(errno, "sync", path_);
  if (close(fd_.Release()) != 0) return SystemError(errno, "close", path_);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return SystemError(errno, "replace", path_);
  }
  temporary_.clear();
  // A rename is durable when its directory is synced.
  const std::string directory = DirectoryOf(path_);
  const UniqueFd fd(
      open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) {
    return SystemError(errno, "sync the directory of", path_);
  }
  return absl::OkStatus();
}

}  // namespace tessera
