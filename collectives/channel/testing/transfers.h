// Blocking transfers over non-blocking sockets, for tests.
#ifndef TESSERA_COLLECTIVES_CHANNEL_TESTING_TRANSFERS_H_
#define TESSERA_COLLECTIVES_CHANNEL_TESTING_TRANSFERS_H_

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"
#include "collectives/channel/deadline.h"

namespace tessera::collectives {

inline absl::Status AwaitTransfer(const UniqueFd& socket, int16_t events,
                                  const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(const bool ready,
                           WaitReady(socket.get(), events, deadline));
  if (ready) return absl::OkStatus();
  return absl::DeadlineExceededError("the other end did not answer in time");
}

// Wait until all of `bytes` is sent or filled. Unavailable if the other end
// closed, DeadlineExceeded at the deadline.
inline absl::Status SendAll(const UniqueFd& socket, std::string_view bytes,
                            const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      TESSERA_RETURN_IF_ERROR(AwaitTransfer(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("cannot send: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

inline absl::Status ReceiveAll(const UniqueFd& socket, std::span<char> bytes,
                               const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t got =
        recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return absl::UnavailableError("the other end closed the connection");
    } else if (errno == EAGAIN) {
      TESSERA_RETURN_IF_ERROR(AwaitTransfer(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("cannot receive: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_TESTING_TRANSFERS_H_
