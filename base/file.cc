#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// The last system call's error, behind what was being done to which file.
absl::Status SystemError(std::string_view action, const std::string& path) {
  return absl::ErrnoToStatus(
      errno, absl::StrCat("cannot ", action, " \"", path, "\""));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

  // Closes early, to see the error.
  int Close() { return close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

absl::Status WriteAll(int fd, std::string_view contents,
                      const std::string& path) {
  while (!contents.empty()) {
    const ssize_t written = write(fd, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write", path);
    contents.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A new file beside `path` that no other writer of any process has.
FileDescriptor CreateTemporary(const std::string& path, std::string* name) {
  static std::atomic<int64_t> counter = 0;
  while (true) {
    *name = absl::StrCat(path, ".", getpid(), ".", counter++, ".tmp");
    const int fd =
        open(name->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST) return FileDescriptor(fd);
  }
}

// A rename is on disk when its directory is.
absl::Status SyncDirectoryOf(const std::string& path) {
  const std::string directory = DirectoryOf(path);
  FileDescriptor fd(
      open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok() || fsync(fd.get()) != 0) return SystemError("sync", directory);
  return absl::OkStatus();
}

absl::Status WriteAndRename(FileDescriptor& fd, const std::string& temporary,
                            const std::string& path,
                            std::string_view contents) {
  TESSERA_RETURN_IF_ERROR(WriteAll(fd.get(), contents, path));
  struct stat old_file;
  if (stat(path.c_str(), &old_file) == 0 &&
      fchmod(fd.get(), old_file.st_mode & 07777) != 0) {
    return SystemError("keep the mode of", path);
  }
  if (fsync(fd.get()) != 0) return SystemError("sync", path);
  if (fd.Close() != 0) return SystemError("close", path);
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return SystemError("replace", path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     int64_t max_bytes) {
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return SystemError("open", path);
  std::string contents;
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = read(fd.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("read", path);
    if (got == 0) return contents;
    contents.append(buffer, static_cast<size_t>(got));
    if (static_cast<int64_t>(contents.size()) > max_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", path, "\" is too large; use at most ", max_bytes, " bytes"));
    }
  }
}

absl::Status WriteFile(const std::string& path, std::string_view contents) {
  std::string temporary;
  FileDescriptor fd = CreateTemporary(path, &temporary);
  if (!fd.ok()) return SystemError("make a new file beside", path);
  if (absl::Status status = WriteAndRename(fd, temporary, path, contents);
      !status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return SyncDirectoryOf(path);
}

}  // namespace tessera
