#include "collectives/channel/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives::bootstrap {
namespace {

constexpr int kBacklog = 1024;

absl::StatusOr<UniqueFd> OpenSocket(const SocketAddress& address) {
  UniqueFd fd(
      socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "cannot open a socket");
  return fd;
}

// Small messages go out at once.
void DisableDelay(const UniqueFd& fd, int family) {
  if (family == AF_UNIX) return;
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

absl::Status ConnectError(int error, const SocketAddress& address) {
  const std::string text = absl::StrCat(
      "cannot connect to ", address.ToString(), ": ", std::strerror(error));
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case EAGAIN:  // A unix socket whose backlog is full.
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EINTR:
    case ECONNABORTED:
      return absl::UnavailableError(text);
    default:
      return absl::Status(absl::ErrnoToStatusCode(error), text);
  }
}

absl::Status FinishConnect(const UniqueFd& fd, const SocketAddress& address,
                           const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(const bool ready,
                           WaitReady(fd.get(), POLLOUT, deadline));
  if (!ready) {
    return absl::DeadlineExceededError(
        absl::StrCat("no answer from ", address.ToString(), " in time"));
  }
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? absl::OkStatus() : ConnectError(error, address);
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

absl::Status AwaitTransfer(const UniqueFd& socket, int16_t events,
                           const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(const bool ready,
                           WaitReady(socket.get(), events, deadline));
  if (ready) return absl::OkStatus();
  return absl::DeadlineExceededError("the other end did not answer in time");
}

}  // namespace

absl::StatusOr<UniqueFd> Listen(const SocketAddress& address) {
  TESSERA_ASSIGN_OR_RETURN(UniqueFd fd, OpenSocket(address));
  const int on = 1;
  if (address.family() != AF_UNIX) {
    // A port whose last owner has just closed is free; a live one is not.
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (bind(fd.get(), address.get(), address.length()) == 0 &&
      listen(fd.get(), kBacklog) == 0) {
    return fd;
  }
  const std::string text = absl::StrCat("cannot listen at ", address.ToString(),
                                        ": ", std::strerror(errno));
  if (errno == EADDRINUSE) return absl::AlreadyExistsError(text);
  if (errno == EADDRNOTAVAIL) return absl::InvalidArgumentError(text);
  return absl::Status(absl::ErrnoToStatusCode(errno), text);
}

absl::StatusOr<SocketAddress> LocalAddress(const UniqueFd& socket) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getsockname(socket.get(), address, &length) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read a socket's address");
  }
  return SocketAddress(address, length);
}

std::string PeerName(const UniqueFd& socket) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getpeername(socket.get(), address, &length) != 0) return "somebody";
  if (storage.ss_family != AF_UNIX) {
    return SocketAddress(address, length).ToString();
  }
  const auto credentials = CredentialsOf(socket);
  if (!credentials.ok()) return "somebody";
  return absl::StrCat("pid ", credentials->pid, " of uid ", credentials->uid);
}

absl::StatusOr<UniqueFd> Connect(const SocketAddress& address,
                                 const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(UniqueFd fd, OpenSocket(address));
  if (connect(fd.get(), address.get(), address.length()) != 0) {
    // After EINTR the connection goes on by itself.
    if (errno != EINPROGRESS && errno != EINTR) {
      return ConnectError(errno, address);
    }
    TESSERA_RETURN_IF_ERROR(FinishConnect(fd, address, deadline));
  }
  DisableDelay(fd, address.family());
  return fd;
}

absl::StatusOr<UniqueFd> Accept(const UniqueFd& listener) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  UniqueFd fd(accept4(listener.get(), reinterpret_cast<sockaddr*>(&storage),
                      &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) {
    DisableDelay(fd, storage.ss_family);
    return fd;
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot accept a connection: ", std::strerror(errno)));
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
    case EOPNOTSUPP:
      return absl::ErrnoToStatus(errno, "cannot accept connections");
    default:  // None waits, or this one broke before it was accepted.
      return UniqueFd();
  }
}

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> SocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) !=
      0) {
    return absl::ErrnoToStatus(errno, "cannot make a pair of sockets");
  }
  return std::make_pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

absl::StatusOr<PeerCredentials> CredentialsOf(const UniqueFd& socket) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) !=
      0) {
    return absl::ErrnoToStatus(errno, "cannot tell whose socket it is");
  }
  return PeerCredentials{credentials.pid, credentials.uid};
}

absl::Status CheckSameUser(const UniqueFd& socket) {
  TESSERA_ASSIGN_OR_RETURN(const PeerCredentials peer, CredentialsOf(socket));
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the other end is pid ", peer.pid, " of uid ", peer.uid,
                   "; only uid ", geteuid(), " may take part"));
}

absl::Status SendAll(const UniqueFd& socket, std::string_view bytes,
                     const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (WouldBlock(errno)) {
      TESSERA_RETURN_IF_ERROR(AwaitTransfer(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("cannot send: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(const UniqueFd& socket, std::span<char> bytes,
                        const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t got =
        recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return absl::UnavailableError("the other end closed the connection");
    } else if (WouldBlock(errno)) {
      TESSERA_RETURN_IF_ERROR(AwaitTransfer(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("cannot receive: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives::bootstrap
