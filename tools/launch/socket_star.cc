#include "tools/launch/socket_star.h"

#include <string.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::tools {

absl::StatusOr<std::vector<std::vector<UniqueFd>>> MakeSocketStar(
    size_t ranks) {
  std::vector<std::vector<UniqueFd>> sockets(ranks);
  for (size_t rank = 1; rank < ranks; ++rank) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot make a socket for rank ", rank, ": ",
                       strerror(errno), "; see ulimit -n"));
    }
    sockets[0].emplace_back(ends[0]);
    sockets[rank].emplace_back(ends[1]);
  }
  return sockets;
}

}  // namespace tessera::tools
