// WakeFd: ends another thread's poll(2).
//
//   wake.Wake();                           // any thread
//   pollfd fds[] = {{wake.fd(), POLLIN, 0}, ...};
//   poll(fds, ...); wake.Drain();          // the thread that polls
#ifndef TESSERA_COLLECTIVES_CHANNEL_WAKE_FD_H_
#define TESSERA_COLLECTIVES_CHANNEL_WAKE_FD_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"

namespace tessera::collectives::bootstrap {

class WakeFd {
 public:
  static absl::StatusOr<WakeFd> Create() {
    UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd.valid())
      return absl::ErrnoToStatus(errno, "cannot make an eventfd");
    return WakeFd(std::move(fd));
  }

  int fd() const { return fd_.get(); }

  void Wake() const {
    const uint64_t one = 1;
    // Fails only where it is awake already.
    [[maybe_unused]] const ssize_t written = write(fd(), &one, sizeof(one));
  }
  void Drain() const {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(fd(), &count, sizeof(count));
  }

 private:
  explicit WakeFd(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_WAKE_FD_H_
