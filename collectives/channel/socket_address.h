// SocketAddress: where a socket listens: TCP over IPv4 or IPv6, or a name in
// Linux's abstract unix namespace.
//
//   TESSERA_ASSIGN_OR_RETURN(auto addresses,
//                            ResolveTcp("localhost", 29500, deadline));
//   addresses[0].ToString();   // "127.0.0.1:29500"
#ifndef TESSERA_COLLECTIVES_CHANNEL_SOCKET_ADDRESS_H_
#define TESSERA_COLLECTIVES_CHANNEL_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/channel/deadline.h"

namespace tessera::collectives::bootstrap {

class SocketAddress {
 public:
  SocketAddress() = default;
  // `length` bytes of `address` count.
  SocketAddress(const sockaddr* address, socklen_t length);

  // "@name" in the abstract namespace: seen by every process of the same
  // network namespace, gone when the last socket closes. InvalidArgument where
  // the name is empty or longer than 107 bytes.
  static absl::StatusOr<SocketAddress> Abstract(std::string_view name);

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  socklen_t length() const { return length_; }
  int family() const { return storage_.ss_family; }

  // True where only processes of this machine can reach it.
  bool IsLocal() const;
  // 0 for unix sockets.
  int port() const;
  // "127.0.0.1:29500", "[::1]:29500", "@name", "a unix socket".
  std::string ToString() const;

 private:
  sockaddr_storage storage_ = {};
  socklen_t length_ = 0;
};

// The addresses of a host by name or number, in the order to try. `port` from 0
// to 65535. Asks the system's resolver only where `host` is no number, and
// gives up at the deadline. NotFound, DeadlineExceeded or InvalidArgument with
// the host's name.
absl::StatusOr<std::vector<SocketAddress>> ResolveTcp(std::string_view host,
                                                      int port,
                                                      const Deadline& deadline);

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_SOCKET_ADDRESS_H_
