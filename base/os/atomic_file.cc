#include "base/os/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"

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

// The path that `path` refers to through symbolic links, which need not exist.
std::string FollowLinks(std::string path) {
  constexpr int kMostLinks = 40;  // As in Linux.
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = (std::filesystem::path(path).parent_path() / target).string();
  }
  return path;
}

// The descriptor of this process whose file `info` describes, if it is one that
// programs print to.
std::optional<int> StandardOutputWith(const struct stat& info) {
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat standard;
    if (fstat(fd, &standard) == 0 && standard.st_dev == info.st_dev &&
        standard.st_ino == info.st_ino) {
      return fd;
    }
  }
  return std::nullopt;
}

// A descriptor that writes to what `info` describes directly; invalid if it is
// a file to be replaced.
absl::StatusOr<UniqueFd> OpenDirectly(const std::string& path,
                                      const struct stat& info) {
  if (S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot write ", QuotedPath(path), ": it is a directory; give a file"));
  }
  int fd = -1;
  if (const auto standard = StandardOutputWith(info)) {
    fd = fcntl(*standard, F_DUPFD_CLOEXEC, 0);
  } else if (S_ISREG(info.st_mode)) {
    return UniqueFd();
  } else {
    fd = open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  }
  if (fd < 0) return SystemError(errno, "open", path);
  return UniqueFd(fd);
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
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    TESSERA_ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectly(path, info));
    if (fd.valid()) return AtomicFile(path, "", "", std::move(fd));
  } else if (errno == ELOOP) {
    return SystemError(errno, "open", path);
  }
  std::string target = FollowLinks(path);
  std::string temporary;
  UniqueFd fd = OpenNew(target, &temporary);
  if (!fd.valid()) {
    return SystemError(errno, "make a new file beside", path);
  }
  AtomicFile file(path, std::move(target), std::move(temporary), std::move(fd));
  if (const int error = Reserve(file.fd_.get(), bytes); error != 0) {
    return SystemError(error, absl::StrCat("reserve ", bytes, " bytes for"),
                       path);
  }
  return file;
}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(target_, other.target_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  std::swap(written_, other.written_);
  std::swap(is_committed_, other.is_committed_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status AtomicFile::Write(int64_t offset,
                               std::span<const std::byte> bytes) {
  const bool is_direct = target_.empty();
  if (is_direct && offset != written_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot write byte ", offset, " of ", QuotedPath(path_), " after byte ",
        written_, ": it is a device or pipe; give a file"));
  }
  while (!bytes.empty()) {
    const ssize_t written =
        is_direct ? write(fd_.get(), bytes.data(), bytes.size())
                  : pwrite(fd_.get(), bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError(errno, "write", path_);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
    written_ += is_direct ? written : 0;
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  is_committed_ = target_.empty();
  if (is_committed_) return absl::OkStatus();
  struct stat old_file;
  if (stat(path_.c_str(), &old_file) == 0 &&
      fchmod(fd_.get(), old_file.st_mode & 07777) != 0) {
    return SystemError(errno, "keep the mode of", path_);
  }
  if (fsync(fd_.get()) != 0) return SystemError(errno, "sync", path_);
  if (close(fd_.Release()) != 0) return SystemError(errno, "close", path_);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) {
    return SystemError(errno, "replace", path_);
  }
  temporary_.clear();
  is_committed_ = true;
  // A rename is durable when its directory is synced.
  return SyncDirectory(DirectoryOf(target_));
}

absl::Status SyncDirectory(const std::string& directory) {
  const UniqueFd fd(
      open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return SystemError(errno, "open the directory", directory);
  if (fsync(fd.get()) == 0 || errno == EINVAL || errno == ENOTSUP ||
      errno == EOPNOTSUPP) {
    return absl::OkStatus();
  }
  return SystemError(errno, "sync the directory", directory);
}

}  // namespace tessera
