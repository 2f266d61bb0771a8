// Functions that pass a file descriptor (for example a memfd) between the ranks
// of one host.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_FD_PASSING_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_FD_PASSING_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "collectives/bootstrap/store.h"
#include "collectives/channel/deadline.h"

namespace tessera::collectives {

// Sends `fd` with `token` (1 to 64 bytes) over a connected unix socket. The
// receiver gets its own descriptor; the sender may close `fd` at once.
absl::Status SendFd(const UniqueFd& socket, const UniqueFd& fd,
                    std::string_view token, const Deadline& deadline);

// Receives one descriptor (close-on-exec) sent with `token`. PermissionDenied
// if another token, no descriptor or more than one is received; all received
// ones are closed. Unavailable if the other end closed, DeadlineExceeded at the
// deadline.
absl::StatusOr<UniqueFd> ReceiveFd(const UniqueFd& socket,
                                   std::string_view token,
                                   const Deadline& deadline);

// Gives all members a copy of the first member's descriptor.
//
//   UniqueFd mine;
//   if (store.rank() == members[0]) mine.Reset(memfd_create(...));
//   TESSERA_ASSIGN_OR_RETURN(
//       UniqueFd shared,
//       ShareFd(store, members, "engine/7/segment", std::move(mine),
//               deadline));
//
// The first member listens on an abstract unix socket with a random 128-bit
// name, published through the store together with two tokens. The others
// connect. Both sides check that the other belongs to the same user
// (SO_PEERCRED) and knows its token before the descriptor is sent (SCM_RIGHTS).
// Other connections are rejected without effect.
//
// Returns `mine` on the first member and a new close-on-exec descriptor of it
// on the others. Every member calls it with the same `members` (distinct ranks
// of one host including the caller) and the same `name`, which is used once per
// job. `mine` is used on the first member only; if it is invalid there, all
// members get FailedPrecondition.
//
// DeadlineExceeded at the deadline, or Unavailable as soon as a member is gone;
// the message names the missing members. Some members may succeed while others
// fail: agree on the outcome afterwards (Barrier).
absl::StatusOr<UniqueFd> ShareFd(Store& store, std::span<const Rank> members,
                                 std::string_view name, UniqueFd mine,
                                 absl::Time deadline);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_FD_PASSING_H_
