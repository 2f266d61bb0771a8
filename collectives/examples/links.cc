#include "collectives/examples/links.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"

namespace tessera::collectives::example {
namespace {

// The first bytes on a connection identify the caller. The secret, published
// only through the job's store, rejects other connections.
struct Hello {
  uint64_t secret = 0;
  int32_t rank = 0;
  int32_t lane = 0;
};

absl::Status SystemError(std::string_view call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
}

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

absl::StatusOr<Socket> Listen(int backlog, uint16_t& port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (socket.fd() < 0 || bind(socket.fd(), generic, length) != 0 ||
      listen(socket.fd(), backlog) != 0 ||
      getsockname(socket.fd(), generic, &length) != 0) {
    return SystemError("listening on loopback");
  }
  port = ntohs(address.sin_port);
  return socket;
}

absl::Status MakeNonBlocking(int fd) {
  const int on = 1;
  if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) {
    return SystemError("preparing a connection");
  }
  return absl::OkStatus();
}

// Returns false if nothing can be read before the deadline.
bool AwaitReadable(int fd, absl::Time deadline) {
  const int64_t ms = absl::ToInt64Milliseconds(deadline - absl::Now());
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1,
              static_cast<int>(std::clamp<int64_t>(ms, 0, 1 << 30))) > 0;
}

uint64_t NewSecret() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

struct Links::Meeting {
  Socket listener;
  uint64_t secret = 0;
  std::vector<uint64_t> ports, secrets;  // By rank.
  absl::Time deadline;
};

absl::StatusOr<Links> Links::Connect(Store& store,
                                     const std::vector<Rank>& members,
                                     std::string_view name,
                                     absl::Time deadline) {
  const auto self = std::find(members.begin(), members.end(), store.rank());
  const auto size = static_cast<int64_t>(members.size());
  Links links(Rank(self - members.begin()), size);
  Meeting meeting;
  meeting.deadline = deadline;
  meeting.secret = NewSecret();
  uint16_t port = 0;
  TESSERA_ASSIGN_OR_RETURN(meeting.listener,
                           Listen(static_cast<int>(size) * kLaneCount, port));
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      AllGather(store, members, absl::StrCat("example/", name),
                absl::StrCat(port, " ", meeting.secret), deadline));
  for (const std::string& text : all) {
    const std::vector<std::string_view> parts = absl::StrSplit(text, ' ');
    uint64_t its_port = 0, its_secret = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &its_port) ||
        !absl::SimpleAtoi(parts[1], &its_secret)) {
      return absl::InternalError("a rank's address cannot be read");
    }
    meeting.ports.push_back(its_port);
    meeting.secrets.push_back(its_secret);
  }
  // Connecting does not wait for the other side to accept.
  for (Rank peer(0); peer < links.rank_; ++peer) {
    for (const Lane lane : {Lane::kCollective, Lane::kPointToPoint}) {
      TESSERA_RETURN_IF_ERROR(links.ConnectTo(meeting, peer, lane));
    }
  }
  const int64_t callers = (size - 1 - links.rank_.value()) * kLaneCount;
  for (int64_t i = 0; i < callers; ++i) {
    TESSERA_RETURN_IF_ERROR(links.Accept(meeting));
  }
  return links;
}

absl::Status Links::ConnectTo(const Meeting& meeting, Rank peer, Lane lane) {
  const auto index = static_cast<size_t>(peer.value());
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address =
      Loopback(static_cast<uint16_t>(meeting.ports[index]));
  const Hello hello{meeting.secrets[index], static_cast<int32_t>(rank_.value()),
                    static_cast<int32_t>(lane)};
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0 ||
      send(socket.fd(), &hello, sizeof(hello), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(sizeof(hello))) {
    return SystemError(absl::StrCat("connecting to rank ", peer.value()));
  }
  TESSERA_RETURN_IF_ERROR(MakeNonBlocking(socket.fd()));
  sockets_[static_cast<size_t>(peer.value() * kLaneCount) +
           static_cast<size_t>(lane)] = std::move(socket);
  return absl::OkStatus();
}

// Accepts one rank's connection; rejects others.
absl::Status Links::Accept(const Meeting& meeting) {
  while (AwaitReadable(meeting.listener.fd(), meeting.deadline)) {
    Socket socket(
        accept4(meeting.listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello;
    if (!AwaitReadable(socket.fd(), meeting.deadline) ||
        recv(socket.fd(), &hello, sizeof(hello), MSG_WAITALL) !=
            static_cast<ssize_t>(sizeof(hello)) ||
        hello.secret != meeting.secret || hello.rank <= rank_.value() ||
        hello.rank >= size_ || hello.lane < 0 || hello.lane >= kLaneCount) {
      continue;
    }
    TESSERA_RETURN_IF_ERROR(MakeNonBlocking(socket.fd()));
    sockets_[static_cast<size_t>(hello.rank * kLaneCount + hello.lane)] =
        std::move(socket);
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      "a rank of a higher number did not connect");
}

}  // namespace tessera::collectives::example
