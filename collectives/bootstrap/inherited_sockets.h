// Inherited sockets: on a single host the launcher passes connected unix
// sockets to every rank, and the job's store runs over them. This needs no port
// and no secret, because no other process has the sockets.
//
// The launcher:
//
//   TESSERA_ASSIGN_OR_RETURN(std::vector<InheritedSockets> sockets,
//                            MakeInheritedSockets(4));
//   // In the child of rank i, between fork and exec:
//   sockets[i].PassOn();
//   setenv(kInheritedSocketsVariable, sockets[i].value.c_str(), 1);
//   // In the parent, after all ranks have started, so that ranks detect when a
//   // peer closes its socket:
//   sockets.clear();
//
// A rank (done by JoinJob):
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

// Comma-separated descriptor numbers: rank 0 has one for each of the ranks 1,
// 2, ... in this order; every other rank has one, connected to rank 0.
inline constexpr char kInheritedSocketsVariable[] = "TESSERA_INHERITED_SOCKETS";

// The values of kInheritedSocketsVariable for later rounds of the rendezvous,
// separated by semicolons: if a rank dies, the others and a new process in its
// place meet in the next round, over sockets that no process has used.
inline constexpr char kLaterSocketsVariable[] = "TESSERA_LATER_SOCKETS";

// The sockets of one rank.
struct InheritedSockets {
  std::string value;  // Value of the variable.
  std::vector<UniqueFd> sockets;

  // The descriptors of `sockets`.
  std::vector<int> numbers() const;

  // Clears close-on-exec. Makes only system calls, so it may be called between
  // fork and exec. Returns false and sets errno on failure.
  bool PassOn() const;
};

// Creates the sockets of ranks 0 to size - 1. They are close-on-exec until
// PassOn, so that no rank inherits another rank's. InvalidArgument unless 1 <=
// size <= 65536; ResourceExhausted if the process may not open enough
// descriptors.
absl::StatusOr<std::vector<InheritedSockets>> MakeInheritedSockets(
    int64_t size);

// Opens the store over the sockets listed in `value` and takes ownership of
// them; they become close-on-exec, which also marks them as used. Rank 0 does
// not wait for the others; the others wait for rank 0 until the deadline.
//
// InvalidArgument if `value` does not list the right number of descriptors or
// one is not a connected unix stream socket; PermissionDenied if one belongs to
// another user; FailedPrecondition if one was not inherited or is already in
// use. On error no descriptor was changed.
absl::StatusOr<std::unique_ptr<Store>> OpenInheritedStore(
    std::string_view value, Rank rank, int64_t size, absl::Time deadline,
    std::function<void(std::string)> on_refusal = nullptr);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_INHERITED_SOCKETS_H_
