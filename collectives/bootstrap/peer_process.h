// HostId and PeerProcess: identify the host and process of a rank.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_PEER_PROCESS_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_PEER_PROCESS_H_

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "collectives/bootstrap/store.h"

namespace tessera::collectives {

// Identifies a host, or a container on it. Ranks with equal HostIds can watch
// each other's processes and pass descriptors.
//
//   TESSERA_ASSIGN_OR_RETURN(HostId here, HostId::Self());
//   if (here == HostId::Parse(text_of_another_rank)) ...
class HostId {
 public:
  HostId() = default;

  // The id of this process's host: the kernel's boot id (differs between
  // machines and boots) and the pid and network namespaces (differ between
  // containers), which determine the meaning of pids and of abstract unix
  // sockets. Unavailable if /proc does not provide them.
  static absl::StatusOr<HostId> Self();

  // Parses the result of ToString. InvalidArgument if malformed.
  static absl::StatusOr<HostId> Parse(std::string_view text);

  // "3f0c...-...:4026531836:4026531840"; at most 100 bytes.
  const std::string& ToString() const { return text_; }

  friend auto operator<=>(const HostId&, const HostId&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const HostId& id) {
    return H::combine(std::move(state), id.text_);
  }
  friend std::ostream& operator<<(std::ostream& os, const HostId& id) {
    return os << id.text_;
  }

 private:
  explicit HostId(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

// The host name for messages, at most 64 bytes; "?" if unknown.
std::string HostName();

// The process of a rank, used to check whether it is alive.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::vector<PeerProcess> peers,
//       ExchangeProcesses(*store, members, "engine/7", deadline));
//   if (peers[1].host == peers[0].host) {
//     TESSERA_ASSIGN_OR_RETURN(UniqueFd pidfd, OpenPidFd(peers[1]));
//     ... poll(pidfd) returns POLLIN when the process dies ...
//   }
struct PeerProcess {
  pid_t pid = 0;
  // Start time in clock ticks after boot; unique on a host together with the
  // pid.
  uint64_t start_ticks = 0;
  HostId host;
  std::string host_name;

  // This process. Unavailable if /proc does not provide its data.
  static absl::StatusOr<PeerProcess> Self();

  // Converts to a text of at most 300 bytes and back. Parse returns
  // InvalidArgument if the text is malformed.
  std::string ToString() const;
  static absl::StatusOr<PeerProcess> Parse(std::string_view text);

  friend bool operator==(const PeerProcess&, const PeerProcess&) = default;
};

// Returns a descriptor of the process that becomes readable when the process
// ends. NotFound if it has already ended (its pid may have been reused),
// FailedPrecondition if it is on another host, Unimplemented if the kernel is
// older than Linux 5.3 or forbids it.
absl::StatusOr<UniqueFd> OpenPidFd(const PeerProcess& process);

// Opens a descriptor by pid only, for example for a child of this process.
// NotFound if there is no such process.
absl::StatusOr<UniqueFd> OpenPidFd(pid_t pid);

// Opens for reading and writing the file that is open as `descriptor` in
// another process of this user, for example a memfd, which other processes then
// can map. Close-on-exec. Errors as OpenPidFd; PermissionDenied if the kernel
// forbids it, NotFound if the process has no such descriptor.
absl::StatusOr<UniqueFd> OpenDescriptorOf(const PeerProcess& process,
                                          int descriptor);

// Returns true if the process of a descriptor from OpenPidFd has ended. One
// system call.
bool IsDead(const UniqueFd& pidfd);

// Gathers every member's process, in the order of `members`. Arguments and
// errors as AllGather.
absl::StatusOr<std::vector<PeerProcess>> ExchangeProcesses(
    Store& store, std::span<const Rank> members, std::string_view name,
    absl::Time deadline);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_PEER_PROCESS_H_
