// Inherited sockets: on one host the program that starts the ranks hands each
// of them connected unix sockets. The job's store runs over these: no port, and
// no secret, because nobody else has them.
//
// The launcher:
//
//   TESSERA_ASSIGN_OR_RETURN(std::vector<InheritedSockets> sockets,
//                            MakeInheritedSockets(4));
//   // In the child of rank i, between fork and exec:
//   sockets[i].PassOn();
//   setenv(kInheritedSocketsVariable, sockets[i].value.c_str(), 1);
//   // In the parent, once all are started: sockets.clear(), so that each rank
//   // sees when another one closes.
//
// A rank (JoinJob does this):
//
//   TESSERA_ASSIGN_OR_RETURN(
//       std::unique_ptr<Store> store,
//       OpenInheritedStore(getenv(...), rank, size, deadline));
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_INHERITED_SOCKETS_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_INHERITED_SOCKETS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "collectives/bootstrap/store.h"

namespace tessera::collectives {

// Descriptor numbers with commas between them: rank 0 has one for each other
// rank, in the order of ranks 1, 2, ...; every other rank has one, to rank 0.
inline constexpr char kInheritedSocketsVariable[] = "TESSERA_INHERITED_SOCKETS";

// One rank's.
struct InheritedSockets {
  std::string value;  // Of the variable.
  std::vector<UniqueFd> sockets;

  // Lets them survive exec. Only makes system calls: may be called between fork
  // and exec. False, with errno set, where one fails.
  bool PassOn() const;
};

// For ranks 0 to size - 1. All are closed on exec until PassOn, so that a rank
// has no other's. InvalidArgument where size is below 1 or above 65536;
// ResourceExhausted where the process may not open so many.
absl::StatusOr<std::vector<InheritedSockets>> MakeInheritedSockets(
    int64_t size);

// Opens the store over the sockets that `value` names and takes them over: they
// are closed on exec from now on, which also marks them as used. Rank 0 does
// not wait for the others; the others wait for rank 0 until the deadline.
//
// InvalidArgument where the value is no list of as many descriptors as this
// rank must have, or one of them is no connected unix stream socket;
// PermissionDenied where one was made by another user; FailedPrecondition where
// one was not inherited or is used already. Then no descriptor was touched.
absl::StatusOr<std::unique_ptr<Store>> OpenInheritedStore(
    std::string_view value, Rank rank, int64_t size, absl::Time deadline,
    std::function<void(std::string)> on_refusal = nullptr);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_INHERITED_SOCKETS_H_
