#include "zero3/checkpoint/file_calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/os/atomic_file.h"
#include "offload/file/async_file.h"

namespace tessera::zero3 {
namespace {

absl::Status LastError(std::string_view action, const std::string& path) {
  // IoError maps the errors for a full disk.
  if (errno == ENOSPC || errno == EDQUOT || errno == EIO) {
    return offload::IoError(errno, action, 0, 0, path);
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", action, " ", path));
}

absl::Status StatusOf(int result, std::string_view action,
                      const std::string& path) {
  return result == 0 ? absl::OkStatus() : LastError(action, path);
}

class SystemFileCalls final : public FileCalls {
 public:
  absl::StatusOr<int> Create(const std::string& path) override {
    const int fd =
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return LastError("create", path);
    return fd;
  }

  absl::Status Write(int fd, std::span<const std::byte> bytes, int64_t offset,
                     const std::string& path) override {
    while (!bytes.empty()) {
      const ssize_t written = write(fd, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        return offload::IoError(
            errno, "write", static_cast<int64_t>(bytes.size()), offset, path);
      }
      bytes = bytes.subspan(static_cast<size_t>(written));
      offset += written;
    }
    return absl::OkStatus();
  }

  absl::Status Sync(int fd, const std::string& path) override {
    return StatusOf(fsync(fd), "sync", path);
  }

  absl::Status Close(int fd, const std::string& path) override {
    return StatusOf(close(fd), "close", path);
  }

  absl::Status MakeDirectory(const std::string& path) override {
    return StatusOf(mkdir(path.c_str(), 0777), "make the directory", path);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    return tessera::SyncDirectory(path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return StatusOf(rename(from.c_str(), to.c_str()),
                    absl::StrCat("rename to ", to, " the file"), from);
  }

  absl::Status Exchange(const std::string& a, const std::string& b) override {
    const int result =
        renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
    if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
      return absl::FailedPreconditionError(absl::StrCat(
          b,
          " exists, and the file system cannot replace it atomically; "
          "remove it first"));
    }
    return StatusOf(result, absl::StrCat("exchange with ", b, " the file"), a);
  }

  absl::Status RemoveFile(const std::string& path) override {
    return StatusOf(unlink(path.c_str()), "remove", path);
  }

  absl::Status RemoveDirectory(const std::string& path) override {
    return StatusOf(rmdir(path.c_str()), "remove the directory", path);
  }
};

}  // namespace

FileCalls& FileCalls::System() {
  static SystemFileCalls* const kSystem = new SystemFileCalls();
  return *kSystem;
}

absl::StatusOr<std::vector<std::string>> ListDirectory(
    const std::string& path) {
  struct Closer {
    void operator()(DIR* directory) const { closedir(directory); }
  };
  const std::unique_ptr<DIR, Closer> directory(opendir(path.c_str()));
  if (directory == nullptr) return LastError("open the directory", path);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return LastError("list the directory", path);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tessera::zero3
