// Sockets that never block, are closed on exec and raise no SIGPIPE.
//
//   TESSERA_ASSIGN_OR_RETURN(UniqueFd listener, Listen(address));
//   TESSERA_ASSIGN_OR_RETURN(UniqueFd socket, Connect(address, deadline));
//   TESSERA_ASSIGN_OR_RETURN(UniqueFd peer, Accept(listener));
#ifndef TESSERA_COLLECTIVES_CHANNEL_SOCKET_H_
#define TESSERA_COLLECTIVES_CHANNEL_SOCKET_H_

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket_address.h"

namespace tessera::collectives::bootstrap {

// A listening socket. AlreadyExists where somebody listens there,
// InvalidArgument where this machine has no such address.
absl::StatusOr<UniqueFd> Listen(const SocketAddress& address);

// The address that a socket has (after port 0 was asked for).
absl::StatusOr<SocketAddress> LocalAddress(const UniqueFd& socket);

// Who is at the other end, for messages: "127.0.0.1:40022", or "pid 12 of uid
// 1000" for a unix socket.
std::string PeerName(const UniqueFd& socket);

// A connected socket. Unavailable where nobody listens there (yet) or the
// connection broke, DeadlineExceeded at the deadline.
absl::StatusOr<UniqueFd> Connect(const SocketAddress& address,
                                 const Deadline& deadline);

// The next connection, or an invalid descriptor where none waits (any more).
// ResourceExhausted where the process has no descriptor left for it.
absl::StatusOr<UniqueFd> Accept(const UniqueFd& listener);

// Two unix stream sockets that are connected to each other.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> SocketPair();

// The process at the other end of a unix socket, as the kernel knows it.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
absl::StatusOr<PeerCredentials> CredentialsOf(const UniqueFd& socket);

// PermissionDenied where the other end belongs to another user.
absl::Status CheckSameUser(const UniqueFd& socket);

// Waits until all of `bytes` is sent, or `bytes` is filled. Unavailable where
// the other end closed, DeadlineExceeded at the deadline.
absl::Status SendAll(const UniqueFd& socket, std::string_view bytes,
                     const Deadline& deadline);
absl::Status ReceiveAll(const UniqueFd& socket, std::span<char> bytes,
                        const Deadline& deadline);

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_SOCKET_H_
