#include "collectives/channel/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace tessera::collectives::bootstrap {
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

// What a resolver's thread leaves behind for whoever still waits for it.
struct PendingLookup {
  absl::Mutex mutex;
  std::optional<Lookup> result ABSL_GUARDED_BY(mutex);
};

// The resolver knows no deadline, so it runs on a thread of its own, which owns
// all that it touches and may outlive the wait.
std::optional<Lookup> LookUpUntil(const std::string& host, int port,
                                  const Deadline& deadline) {
  const auto pending = std::make_shared<PendingLookup>();
  std::thread([pending, host, port] {
    Lookup result = LookUp(host, port, 0);
    absl::MutexLock lock(&pending->mutex);
    pending->result = std::move(result);
  }).detach();
  absl::MutexLock lock(&pending->mutex);
  const auto ready = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return pending->result.has_value();
  };
  pending->mutex.AwaitWithTimeout(absl::Condition(&ready), deadline.Left());
  return std::move(pending->result);
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
  // A first byte of 0 makes it abstract.
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
                     "\" is no host name: use a name of 1 to ", kMaxHostName,
                     " bytes or an address such as 127.0.0.1"));
  }
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("port ", port, " is not from 0 to 65535"));
  }
  // Means the same everywhere, whatever the resolver is told.
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
                     "; use its number, or a name that every "
                     "rank can resolve"));
  }
  return std::move(found->addresses);
}

}  // namespace tessera::collectives::bootstrap
