// Collectives on buffers that every rank can reach: each rank reads what it
// needs from where it is and writes results to where they belong, 2S bytes a
// rank for an all_reduce of S. What only moves may also lie in a peer's own
// memory, where the kernel reads it.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_ZERO_COPY_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_ZERO_COPY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/host_memory/call.h"

namespace tessera::collectives::direct {

// Everybody's buffers, as this rank reaches them.
struct Reachable {
  // Null where only the kernel reaches it, at `addresses`.
  std::vector<const std::byte*> inputs;
  std::vector<uintptr_t> addresses;
  std::vector<std::byte*> outputs;
  bool enough = false;  // RunZeroCopy can carry out the call.
};

// Tells the others where this rank's buffers are, and hears it from them. All
// ranks come to the same answer. One synchronisation.
absl::StatusOr<Reachable> ExchangePlaces(Call& call);

// Not for an uneven all_to_all or one in place.
absl::Status RunZeroCopy(Call& call, const Reachable& reachable);

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_ZERO_COPY_H_
