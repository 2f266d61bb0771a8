// Non-blocking sockets and their addresses. The sockets are close-on-exec and
// raise no SIGPIPE.
//
//   TESSERA_ASSIGN_OR_RETURN(UniqueFd listener, Listen(address));
//   TESSERA_ASSIGN_OR_RETURN(UniqueFd socket, Connect(address, deadline));
//   TESSERA_ASSIGN_OR_RETURN(UniqueFd peer, Accept(listener));
#ifndef TESSERA_COLLECTIVES_CHANNEL_SOCKET_H_
#define TESSERA_COLLECTIVES_CHANNEL_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "collectives/channel/deadline.h"

namespace tessera::collectives {

// TCP over IPv4 or IPv6, or a name in Linux's abstract unix namespace.
//
//   TESSERA_ASSIGN_OR_RETURN(auto addresses,
//                            ResolveTcp("localhost", 29500, deadline));
//   addresses[0].ToString();  // "127.0.0.1:29500"
class SocketAddress {
 public:
  SocketAddress() = default;
  // Copies `length` bytes of `address`.
  SocketAddress(const sockaddr* address, socklen_t length);

  // "@name" in the abstract namespace: seen by every process of the same
  // network namespace, removed when the last socket closes. InvalidArgument if
  // the name is empty or longer than 107 bytes.
  static absl::StatusOr<SocketAddress> Abstract(std::string_view name);

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  socklen_t length() const { return length_; }
  int family() const { return storage_.ss_family; }

  // True if only processes of this host can reach it.
  bool IsLocal() const;
  // 0 for unix sockets.
  int port() const;
  // "127.0.0.1:29500", "[::1]:29500", "@name", "a unix socket".
  std::string ToString() const;

 private:
  sockaddr_storage storage_ = {};
  socklen_t length_ = 0;
};

// The addresses of a host given by name or IP address, in the order to try.
// An IPv6 address may stand in brackets. `port`: 0 to 65535. Uses the system's
// resolver only if `host` is not an IP address, until the deadline. NotFound,
// DeadlineExceeded or InvalidArgument with the host's name.
absl::StatusOr<std::vector<SocketAddress>> ResolveTcp(std::string_view host,
                                                      int port,
                                                      const Deadline& deadline);

// True if `host` is the name of this host, with or without its domain.
bool IsOwnHostName(std::string_view host);

// A listening socket. AlreadyExists if the address is in use, InvalidArgument
// if this host does not have it.
absl::StatusOr<UniqueFd> Listen(const SocketAddress& address);

// The address of a socket, for example after listening on port 0.
absl::StatusOr<SocketAddress> LocalAddress(const UniqueFd& socket);

// The name of the other end, for messages: "127.0.0.1:40022", or "pid 12 of uid
// 1000" for a unix socket.
std::string PeerName(const UniqueFd& socket);

// A connected socket. Unavailable if no process listens there or the connection
// broke, DeadlineExceeded at the deadline.
absl::StatusOr<UniqueFd> Connect(const SocketAddress& address,
                                 const Deadline& deadline);

// The next connection, or an invalid descriptor if none is pending.
// ResourceExhausted if the process has no descriptors left.
absl::StatusOr<UniqueFd> Accept(const UniqueFd& listener);

// A connected pair of unix stream sockets.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> SocketPair();

// The process at the other end of a unix socket, as reported by the kernel.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
absl::StatusOr<PeerCredentials> CredentialsOf(const UniqueFd& socket);

// PermissionDenied if the other end belongs to another user.
absl::Status CheckSameUser(const UniqueFd& socket);

// A port of an address of this host that is currently free. Another process may
// take it before the caller listens there. Errors as ResolveTcp and Listen.
absl::StatusOr<int> FreePort(std::string_view host, const Deadline& deadline);

// The address of this host that another host sees.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::string address,
//                            LocalAddressTowards("node0", deadline));
//   // "10.77.0.2", the source of the route to node0.
//
// For engines that open their own sockets. Sends nothing; asks the kernel for
// its route. If `host` is this host's own name, which Debian's /etc/hosts maps
// to 127.0.1.1, the result is the source of the default route, if there is one.
//
// Returns an IP address such as "127.0.0.1" or "::1". Errors as ResolveTcp;
// Unavailable if there is no route to the host.
absl::StatusOr<std::string> LocalAddressTowards(std::string_view host,
                                                const Deadline& deadline);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_SOCKET_H_
