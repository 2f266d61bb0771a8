#include "collectives/channel/byte_channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::collectives {

absl::StatusOr<Progress> PlainChannel::Read(std::span<char> bytes) {
  while (true) {
    const ssize_t got = recv(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) return Progress{static_cast<size_t>(got), Want::kNothing};
    if (got == 0) {
      return absl::UnavailableError("the other end closed the connection");
    }
    if (errno == EAGAIN) return Progress{0, Want::kRead};
    if (errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("the connection broke: ", std::strerror(errno)));
    }
  }
}

absl::StatusOr<Progress> PlainChannel::Write(std::string_view bytes) {
  while (true) {
    const ssize_t sent =
        send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return Progress{static_cast<size_t>(sent), Want::kNothing};
    if (errno == EAGAIN) return Progress{0, Want::kWrite};
    if (errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("the connection broke: ", std::strerror(errno)));
    }
  }
}

void PlainChannel::Close() { shutdown(fd(), SHUT_RDWR); }

}  // namespace tessera::collectives
