#include "collectives/channel/local_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"
#include "collectives/channel/socket_address.h"

namespace tessera::collectives::bootstrap {
namespace {

constexpr int kAnyPort = 9;

// Connecting a datagram socket only chooses its route.
absl::StatusOr<SocketAddress> SourceFor(const SocketAddress& peer) {
  const UniqueFd socket(::socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  if (!socket.valid() ||
      connect(socket.get(), peer.get(), peer.length()) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&storage),
                  &length) != 0) {
    return absl::ErrnoToStatus(errno, "no route");
  }
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), length);
}

}  // namespace

absl::StatusOr<std::string> LocalAddressTowards(std::string_view host,
                                                const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(const auto addresses,
                           ResolveTcp(host, kAnyPort, deadline));
  absl::Status last;
  for (const SocketAddress& peer : addresses) {
    const absl::StatusOr<SocketAddress> source = SourceFor(peer);
    char text[NI_MAXHOST] = "";
    if (source.ok() &&
        getnameinfo(source->get(), source->length(), text, sizeof(text),
                    nullptr, 0, NI_NUMERICHOST) == 0) {
      return std::string(text);
    }
    last = source.status();
  }
  return absl::UnavailableError(absl::StrCat("this host has no route to \"",
                                             host.substr(0, 64),
                                             "\": ", last.message()));
}

}  // namespace tessera::collectives::bootstrap
