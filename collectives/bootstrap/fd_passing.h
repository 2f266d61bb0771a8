// Passing a descriptor (a memfd, say) between the ranks of one host.
//
//   UniqueFd mine;
//   if (store.rank() == members[0]) mine.Reset(memfd_create(...));
//   TESSERA_ASSIGN_OR_RETURN(
//       UniqueFd shared,
//       ShareFd(store, members, "engine/7/segment", std::move(mine),
//               deadline));
//
// The first member listens on an abstract unix socket whose name is 128 random
// bits, published through the store together with two tokens. The others
// connect; both sides check that the other is of the same user (SO_PEERCRED)
// and knows its token before the descriptor travels (SCM_RIGHTS). Whoever else
// connects is turned away and disturbs nobody.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_FD_PASSING_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_FD_PASSING_H_

#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "collectives/bootstrap/store.h"

namespace tessera::collectives {

// Gives every member a descriptor of what the first one has in `mine`: the
// first its own back, the others a new one, closed on exec. Every member calls
// it with the same members (distinct ranks of one host, the caller among them)
// and name, used once in a job. `mine` counts on the first member only; where
// it is not valid there, FailedPrecondition on all of them.
//
// DeadlineExceeded at the deadline, or Unavailable as soon as a member is gone,
// naming those that did not come. Others than the first may have their
// descriptor while one fails: agree on the outcome afterwards (Barrier).
absl::StatusOr<UniqueFd> ShareFd(Store& store, std::span<const Rank> members,
                                 std::string_view name, UniqueFd mine,
                                 absl::Time deadline);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_FD_PASSING_H_
