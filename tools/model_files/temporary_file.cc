#include "tools/model_files/temporary_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::model_files {
namespace {

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A name that no other writer of any process has; the least free number.
UniqueFd OpenNew(const std::string& path, std::string* name) {
  for (int64_t number = 0;; ++number) {
    *name = absl::StrCat(path, ".", getpid(), ".", number, ".tmp");
    const int fd =
        open(name->c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST) return UniqueFd(fd);
  }
}

// Room on the disk, where the file system can promise it; else only the length.
int Reserve(int fd, int64_t bytes) {
  if (bytes == 0) return 0;
  const int error = posix_fallocate(fd, 0, bytes);
  if (error != EOPNOTSUPP && error != EINVAL) return error;
  return ftruncate(fd, bytes) == 0 ? 0 : errno;
}

}  // namespace

absl::Status TemporaryFile::SystemError(const char* action) const {
  return absl::ErrnoToStatus(
      errno, absl::StrCat("cannot ", action, " ", QuotedPath(path_)));
}

absl::StatusOr<TemporaryFile> TemporaryFile::Create(const std::string& path,
                                                    int64_t bytes) {
  std::string temporary;
  UniqueFd fd = OpenNew(path, &temporary);
  if (!fd.valid()) {
    return absl::ErrnoToStatus(
        errno,
        absl::StrCat("cannot make a new file beside ", QuotedPath(path)));
  }
  TemporaryFile file(path, std::move(temporary), std::move(fd));
  if (const int error = Reserve(file.fd_.get(), bytes); error != 0) {
    return absl::ErrnoToStatus(
        error, absl::StrCat("cannot reserve ", bytes, " bytes for ",
                            QuotedPath(path)));
  }
  return file;
}

TemporaryFile& TemporaryFile::operator=(TemporaryFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  return *this;
}

TemporaryFile::~TemporaryFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status TemporaryFile::Write(int64_t offset,
                                  std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write");
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
  return absl::OkStatus();
}

absl::Status TemporaryFile::Commit() {
  struct stat old_file;
  if (stat(path_.c_str(), &old_file) == 0 &&
      fchmod(fd_.get(), old_file.st_mode & 07777) != 0) {
    return SystemError("keep the mode of");
  }
  if (fsync(fd_.get()) != 0) return SystemError("sync");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return SystemError("replace");
  }
  temporary_.clear();
  fd_.Reset();
  const std::string directory = DirectoryOf(path_);
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) {
    return SystemError("sync the directory of");
  }
  return absl::OkStatus();
}

}  // namespace tessera::model_files
