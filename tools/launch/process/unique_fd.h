// UniqueFd: a file descriptor that is closed when its owner dies.
#ifndef TESSERA_TOOLS_LAUNCH_PROCESS_UNIQUE_FD_H_
#define TESSERA_TOOLS_LAUNCH_PROCESS_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace tessera::tools {

class UniqueFd {
 public:
  UniqueFd() = default;
  // Takes over `fd`; a negative one means none.
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }

  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

  // Closes what is held and takes over `fd`.
  void Reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_PROCESS_UNIQUE_FD_H_
