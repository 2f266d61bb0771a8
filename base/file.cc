#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/os/atomic_file.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// The error of the last system call, with the action and the path.
absl::Status SystemError(std::string_view action, const std::string& path) {
  return absl::ErrnoToStatus(
      errno, absl::StrCat("cannot ", action, " \"", path, "\""));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     int64_t max_bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return SystemError("open", path);
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

absl::Status ReadAt(int fd, int64_t offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t got = pread(fd, to.data(), to.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "cannot read");
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(
          "the file ends ", to.size(),
          " bytes too early: it was truncated after it was opened"));
    }
    to = to.subspan(static_cast<size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

bool PathExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

absl::Status WriteFile(const std::string& path, std::string_view contents) {
  TESSERA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  TESSERA_RETURN_IF_ERROR(file.Write(
      0, std::as_bytes(std::span(contents.data(), contents.size()))));
  return file.Commit();
}

}  // namespace tessera
