#include "collectives/channel/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"

namespace tessera::collectives {

namespace {

constexpr size_t kMaxHostName = 253;

struct Lookup {
  int error = 0;
  std::vector<SocketAddress> addresses;
};

Lookup LookUp(const std::string& host, int port, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Lookup result;
  result.error =
      getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &list);
  if (result.error != 0) return result;
  for (const addrinfo* it = list; it != nullptr; it = it->ai_next) {
    result.addresses.emplace_back(it->ai_addr, it->ai_addrlen);
  }
  freeaddrinfo(list);
  return result;
}

// The resolver has no deadline, so it runs on its own thread, which owns its
// data and may outlive the wait.
std::optional<Lookup> LookUpUntil(const std::string& host, int port,
                                  const Deadline& deadline) {
  std::promise<Lookup> promise;
  std::future<Lookup> result = promise.get_future();
  std::thread([promise = std::move(promise), host, port]() mutable {
    promise.set_value(LookUp(host, port, 0));
  }).detach();
  const absl::Duration left = std::min(deadline.Left(), absl::Hours(24));
  if (result.wait_for(absl::ToChronoNanoseconds(left)) !=
      std::future_status::ready) {
    return std::nullopt;
  }
  return result.get();
}

constexpr int kBacklog = 1024;

absl::StatusOr<UniqueFd> OpenSocket(const SocketAddress& address) {
  UniqueFd fd(
      socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "cannot open a socket");
  return fd;
}

// Sends small messages immediately.
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

constexpr int kAnyPort = 9;

// Connecting a datagram socket only selects its route.
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

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length)
    : length_(std::min<socklen_t>(length, sizeof(storage_))) {
  std::memcpy(&storage_, address, length_);
}

absl::StatusOr<SocketAddress> SocketAddress::Abstract(std::string_view name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an abstract socket's name has ", name.size(),
                     " bytes; use 1 to ", sizeof(address.sun_path) - 1));
  }
  // The first byte 0 marks an abstract name.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return SocketAddress(reinterpret_cast<const sockaddr*>(&address),
                       static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                              1 + name.size()));
}

bool SocketAddress::IsLocal() const {
  if (family() == AF_UNIX) return true;
  if (family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage_);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  if (family() != AF_INET6) return false;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage_);
  if (IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) return true;
  return IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127;
}

int SocketAddress::port() const {
  if (family() == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
  }
  if (family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port);
  }
  return 0;
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage_);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", port());
  }
  if (family() == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage_);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return absl::StrCat("[", text, "]:", port());
  }
  const size_t prefix = offsetof(sockaddr_un, sun_path);
  if (family() == AF_UNIX && length_ > prefix + 1) {
    const auto& local = reinterpret_cast<const sockaddr_un&>(storage_);
    return absl::StrCat("@", absl::CHexEscape(std::string_view(
                                 local.sun_path + 1, length_ - prefix - 1)));
  }
  return "a unix socket";
}

absl::StatusOr<std::vector<SocketAddress>> ResolveTcp(
    std::string_view host, int port, const Deadline& deadline) {
  if (host.empty() || host.size() > kMaxHostName ||
      host.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(host.substr(0, 60)),
                     "\" is not a host name: use a name of 1 to ", kMaxHostName,
                     " bytes or an address such as 127.0.0.1"));
  }
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("port ", port, " is out of range; use 0 to 65535"));
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);  // An IPv6 address as in a URL.
  }
  // Resolves to loopback regardless of the resolver's configuration.
  const std::string name(host == "localhost" ? "127.0.0.1" : host);
  Lookup numeric = LookUp(name, port, AI_NUMERICHOST);
  if (numeric.error == 0) return std::move(numeric.addresses);
  std::optional<Lookup> found = LookUpUntil(name, port, deadline);
  if (!found) {
    return absl::DeadlineExceededError(absl::StrCat(
        "the resolver did not answer in time for host \"", name, "\""));
  }
  if (found->error != 0 || found->addresses.empty()) {
    return absl::NotFoundError(
        absl::StrCat("host \"", absl::CHexEscape(name),
                     "\" has no address: ", gai_strerror(found->error),
                     "; use its IP address, or a name that every "
                     "rank can resolve"));
  }
  return std::move(found->addresses);
}

bool IsOwnHostName(std::string_view host) {
  char own[256] = "";
  if (gethostname(own, sizeof(own) - 1) != 0) return false;
  const auto without_domain = [](std::string_view name) {
    return name.substr(0, name.find('.'));
  };
  return *own != '\0' &&
         absl::EqualsIgnoreCase(without_domain(host), without_domain(own));
}

absl::StatusOr<UniqueFd> Listen(const SocketAddress& address) {
  TESSERA_ASSIGN_OR_RETURN(UniqueFd fd, OpenSocket(address));
  const int on = 1;
  if (address.family() != AF_UNIX) {
    // Allows reuse of a port whose owner has just closed it.
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (bind(fd.get(), address.get(), address.length()) == 0 &&
      listen(fd.get(), kBacklog) == 0) {
    return fd;
  }
  const std::string text = absl::StrCat("cannot listen on ", address.ToString(),
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
  if (getpeername(socket.get(), address, &length) != 0)
    return "an unknown peer";
  if (storage.ss_family != AF_UNIX) {
    return SocketAddress(address, length).ToString();
  }
  const auto credentials = CredentialsOf(socket);
  if (!credentials.ok()) return "an unknown peer";
  return absl::StrCat("pid ", credentials->pid, " of uid ", credentials->uid);
}

absl::StatusOr<UniqueFd> Connect(const SocketAddress& address,
                                 const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(UniqueFd fd, OpenSocket(address));
  if (connect(fd.get(), address.get(), address.length()) != 0) {
    // After EINTR the connection continues in the background.
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
    default:  // None is pending, or it broke before it was accepted.
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
    return absl::ErrnoToStatus(errno,
                               "cannot determine the owner of the socket");
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

absl::StatusOr<int> FreePort(std::string_view host, const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(const auto addresses, ResolveTcp(host, 0, deadline));
  TESSERA_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(addresses[0]));
  TESSERA_ASSIGN_OR_RETURN(const SocketAddress found, LocalAddress(listener));
  return found.port();
}

absl::StatusOr<std::string> LocalAddressTowards(std::string_view host,
                                                const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(auto addresses,
                           ResolveTcp(host, kAnyPort, deadline));
  if (IsOwnHostName(host) && addresses.front().IsLocal()) {
    // An address of documentation (RFC 5737); nothing is sent to it.
    TESSERA_ASSIGN_OR_RETURN(auto far,
                             ResolveTcp("192.0.2.1", kAnyPort, deadline));
    addresses.insert(addresses.begin(), far.begin(), far.end());
  }
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

}  // namespace tessera::collectives
