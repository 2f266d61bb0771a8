// PeerProcess: another rank's process on this host, and whether it lives.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::vector<PeerProcess> peers,
//       ExchangeProcesses(*store, members, "engine/7", deadline));
//   if (peers[1].host == peers[0].host) {
//     TESSERA_ASSIGN_OR_RETURN(UniqueFd pidfd, OpenPidFd(peers[1]));
//     ... poll(pidfd) wakes with POLLIN when it dies; IsDead(pidfd) ...
//   }
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_PEER_PROCESS_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_PEER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "collectives/bootstrap/host_id.h"
#include "collectives/bootstrap/store.h"

namespace tessera::collectives {

struct PeerProcess {
  pid_t pid = 0;
  // When it started, in clock ticks after boot: with the pid, unique on a host.
  uint64_t start_ticks = 0;
  HostId host;
  std::string host_name;

  // This process. Unavailable where /proc does not say.
  static absl::StatusOr<PeerProcess> Self();

  // A text of at most 300 bytes that Parse reads back. Parse: InvalidArgument
  // where it is none.
  std::string ToString() const;
  static absl::StatusOr<PeerProcess> Parse(std::string_view text);

  friend bool operator==(const PeerProcess&, const PeerProcess&) = default;
};

// A descriptor of the process, which becomes readable when it ends. NotFound
// where it has ended already (its pid may be another's by now),
// FailedPrecondition where it is on another host, Unimplemented where the
// kernel is older than Linux 5.3 or forbids it.
absl::StatusOr<UniqueFd> OpenPidFd(const PeerProcess& process);

// As above by number only, for a child of this process, say. NotFound where
// there is no such process.
absl::StatusOr<UniqueFd> OpenPidFd(pid_t pid);

// Whether the process of a descriptor by OpenPidFd has ended. Costs one system
// call.
bool IsDead(const UniqueFd& pidfd);

// Every member's process, in the order of `members`. As AllGather.
absl::StatusOr<std::vector<PeerProcess>> ExchangeProcesses(
    Store& store, std::span<const Rank> members, std::string_view name,
    absl::Time deadline);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_PEER_PROCESS_H_
