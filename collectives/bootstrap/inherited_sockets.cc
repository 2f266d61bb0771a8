#include "collectives/bootstrap/inherited_sockets.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/store_client.h"
#include "collectives/bootstrap/store_server.h"
#include "collectives/channel/byte_channel.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"

namespace tessera::collectives {
namespace {

constexpr int64_t kMaxRanks = 65536;

std::string Show(std::string_view value) {
  return absl::StrCat(kInheritedSocketsVariable, "=\"",
                      absl::CHexEscape(value.substr(0, 80)), "\"",
                      value.size() > 80 ? "..." : "");
}

int SocketOption(int fd, int option) {
  int value = 0;
  socklen_t size = sizeof(value);
  return getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

// An inherited descriptor is not close-on-exec; one used by an earlier join is
// close-on-exec or closed.
absl::Status CheckInherited(int fd) {
  const int flags = fcntl(fd, F_GETFD);
  if (flags >= 0 && (flags & FD_CLOEXEC) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "descriptor ", fd, flags < 0 ? " is not open" : " is in use",
      ": this process has joined its job already, or its launcher did not pass "
      "the descriptor; join once, and start every rank with the launcher"));
}

absl::Status CheckSocket(int fd) {
  struct stat info = {};
  sockaddr_storage peer = {};
  socklen_t length = sizeof(peer);
  if (fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) &&
      SocketOption(fd, SO_DOMAIN) == AF_UNIX &&
      SocketOption(fd, SO_TYPE) == SOCK_STREAM &&
      getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "descriptor ", fd, " is not a connected unix stream socket"));
}

absl::Status CheckDescriptor(int fd) {
  TESSERA_RETURN_IF_ERROR(CheckInherited(fd));
  TESSERA_RETURN_IF_ERROR(CheckSocket(fd));
  UniqueFd borrowed(fd);
  const absl::Status status = CheckSameUser(borrowed);
  borrowed.Release();
  return Annotate(status, absl::StrCat("descriptor ", fd));
}

absl::StatusOr<std::vector<int>> ParseDescriptors(std::string_view value,
                                                  size_t expected) {
  std::vector<int> fds;
  absl::flat_hash_set<int> seen;
  for (std::string_view text : absl::StrSplit(value, ',', absl::SkipEmpty())) {
    int fd = -1;
    if (!absl::SimpleAtoi(text, &fd) || absl::StrCat(fd) != text || fd < 0 ||
        !seen.insert(fd).second || fds.size() == expected) {
      break;
    }
    fds.push_back(fd);
  }
  const auto commas =
      static_cast<size_t>(std::count(value.begin(), value.end(), ','));
  const size_t wanted_commas = expected == 0 ? 0 : expected - 1;
  if (fds.size() == expected && commas == wanted_commas) return fds;
  return absl::InvalidArgumentError(
      absl::StrCat("it must be a comma-separated list of ", expected,
                   " different descriptor numbers"));
}

// Checks all descriptors before it takes ownership of them.
absl::StatusOr<std::vector<std::unique_ptr<ByteChannel>>> TakeOver(
    std::string_view value, size_t expected) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> fds,
                           ParseDescriptors(value, expected));
  for (const int fd : fds) TESSERA_RETURN_IF_ERROR(CheckDescriptor(fd));
  std::vector<std::unique_ptr<ByteChannel>> channels;
  for (const int fd : fds) {
    UniqueFd owned(fd);
    // Neither call fails on an open descriptor.
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    channels.push_back(std::make_unique<PlainChannel>(std::move(owned)));
  }
  return channels;
}

}  // namespace

std::vector<int> InheritedSockets::numbers() const {
  std::vector<int> numbers;
  for (const UniqueFd& socket : sockets) numbers.push_back(socket.get());
  return numbers;
}

bool InheritedSockets::PassOn() const {
  for (const UniqueFd& socket : sockets) {
    if (fcntl(socket.get(), F_SETFD, 0) != 0) return false;
  }
  return true;
}

absl::StatusOr<std::vector<InheritedSockets>> MakeInheritedSockets(
    int64_t size) {
  if (size < 1 || size > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot create sockets for ", size, " ranks; use 1 to ", kMaxRanks));
  }
  std::vector<InheritedSockets> all(static_cast<size_t>(size));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    TESSERA_ASSIGN_OR_RETURN(auto pair, SocketPair(),
                             absl::ResourceExhaustedError(absl::StrCat(
                                 _.message(), "; ", size, " ranks need ",
                                 2 * (size - 1), " descriptors (ulimit -n)")));
    // Blocking, as programs that do not use this library expect.
    for (const UniqueFd* end : {&pair.first, &pair.second}) {
      fcntl(end->get(), F_SETFL, 0);
    }
    absl::StrAppend(&all[0].value, rank > 1 ? "," : "", pair.first.get());
    all[0].sockets.push_back(std::move(pair.first));
    all[rank].value = absl::StrCat(pair.second.get());
    all[rank].sockets.push_back(std::move(pair.second));
  }
  return all;
}

absl::StatusOr<std::unique_ptr<Store>> OpenInheritedStore(
    std::string_view value, Rank rank, int64_t size, absl::Time deadline,
    std::function<void(std::string)> on_refusal) {
  const std::string context =
      absl::StrCat(Show(value), " of rank ", rank.value(), " of ", size);
  if (size < 1 || size > kMaxRanks || rank < Rank(0) || rank.value() >= size) {
    return absl::InvalidArgumentError(absl::StrCat(
        context, ": the rank must be less than the size, and the size at most ",
        kMaxRanks));
  }
  const size_t expected =
      rank == Rank(0) ? static_cast<size_t>(size - 1) : size_t{1};
  TESSERA_ASSIGN_OR_RETURN(auto channels, TakeOver(value, expected),
                           Annotate(_, context));
  if (rank == Rank(0)) {
    ServerOptions options;
    options.on_refusal = std::move(on_refusal);
    return ServeTable(size, 0, [&](std::shared_ptr<StoreTable> table) {
      return StoreServer::Adopt(std::move(table), std::move(options),
                                std::move(channels));
    });
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Store> store,
      StoreClient::Join(std::move(channels[0]), rank, size, Deadline(deadline)),
      Annotate(_, absl::StrCat("rank ", rank.value(), " of ", size,
                               " cannot reach rank 0 over its socket")));
  return store;
}

}  // namespace tessera::collectives
