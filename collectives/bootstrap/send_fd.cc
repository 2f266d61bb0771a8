#include "collectives/bootstrap/send_fd.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/channel/random.h"
#include "collectives/channel/socket.h"

namespace tessera::collectives::bootstrap {
namespace {

constexpr size_t kMaxToken = 64;
constexpr size_t kMaxFds = 8;

// Room for the descriptors of one message, aligned as the kernel wants.
template <size_t fds>
struct Control {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * fds)> bytes = {};
};

std::vector<UniqueFd> TakeFds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

// recvmsg, waiting for the first byte.
absl::StatusOr<size_t> ReceiveMessage(const UniqueFd& socket, msghdr& message,
                                      const Deadline& deadline) {
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool ready,
                             WaitReady(socket.get(), POLLIN, deadline));
    if (!ready) {
      return absl::DeadlineExceededError("no descriptor came in time");
    }
    const ssize_t got =
        recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) {
      return absl::UnavailableError("the other end closed the connection");
    }
    if (errno != EAGAIN && errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("cannot receive: ", std::strerror(errno)));
    }
  }
}

}  // namespace

absl::Status SendFd(const UniqueFd& socket, const UniqueFd& fd,
                    std::string_view token, const Deadline& deadline) {
  if (token.empty() || token.size() > kMaxToken) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a token of ", token.size(), " bytes; use 1 to ", kMaxToken));
  }
  Control<1> control;
  // The descriptor goes with the first byte, the rest follows by itself.
  iovec bytes = {const_cast<char*>(token.data()), 1};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = fd.get();
  std::memcpy(CMSG_DATA(part), &number, sizeof(int));
  while (sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return absl::UnavailableError(
          absl::StrCat("cannot send a descriptor: ", std::strerror(errno)));
    }
    TESSERA_ASSIGN_OR_RETURN(const bool ready,
                             WaitReady(socket.get(), POLLOUT, deadline));
    if (!ready) return absl::DeadlineExceededError("cannot send a descriptor");
  }
  return SendAll(socket, token.substr(1), deadline);
}

absl::StatusOr<UniqueFd> ReceiveFd(const UniqueFd& socket,
                                   std::string_view token,
                                   const Deadline& deadline) {
  std::string got(token.size(), '\0');
  Control<kMaxFds> control;
  iovec bytes = {got.data(), got.size()};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  TESSERA_ASSIGN_OR_RETURN(const size_t size,
                           ReceiveMessage(socket, message, deadline));
  std::vector<UniqueFd> fds = TakeFds(message);
  TESSERA_RETURN_IF_ERROR(
      ReceiveAll(socket, std::span(got).subspan(size), deadline));
  if (fds.size() == 1 && SecretsEqual(got, token)) return std::move(fds[0]);
  return absl::PermissionDeniedError(
      absl::StrCat("the other end sent ", fds.size(), " descriptors",
                   SecretsEqual(got, token) ? "" : " and the wrong token"));
}

}  // namespace tessera::collectives::bootstrap
