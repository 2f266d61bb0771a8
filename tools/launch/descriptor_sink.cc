#include "tools/launch/descriptor_sink.h"

#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace tessera::tools {
namespace {

bool IsRegularFile(int fd) {
  struct stat file;
  return fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
}

}  // namespace

DescriptorSink::DescriptorSink(int fd, std::string name)
    : fd_(fd), name_(std::move(name)), is_file_(IsRegularFile(fd)) {}

absl::Status DescriptorSink::WriteSome() {
  while (pending() > 0 && failure_.ok() && IsReady()) failure_ = WriteOnce();
  const bool is_done = pending() == 0 || !failure_.ok();
  if (is_done || written_ >= buffer_.size() / 2) {
    buffer_.erase(0, is_done ? buffer_.size() : written_);
    written_ = 0;
  }
  return failure_;
}

bool DescriptorSink::IsReady() const {
  if (is_file_) return true;
  pollfd descriptor = {fd_, POLLOUT, 0};
  return poll(&descriptor, 1, 0) > 0;
}

absl::Status DescriptorSink::WriteOnce() {
  // Whoever is ready for one byte takes PIPE_BUF bytes without blocking.
  const size_t count =
      is_file_ ? pending() : std::min<size_t>(pending(), PIPE_BUF);
  const ssize_t written = write(fd_, buffer_.data() + written_, count);
  if (written >= 0) {
    written_ += static_cast<size_t>(written);
    return absl::OkStatus();
  }
  if (errno == EINTR || errno == EAGAIN) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(name_, " could not be written: ", strerror(errno)));
}

}  // namespace tessera::tools
