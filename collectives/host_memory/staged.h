// Collectives on ordinary buffers: piece by piece through windows that stay in
// the caches.
//
// all_reduce and reduce in two shots: every rank shows its piece, combines its
// slice of everybody's, shows the result, and collects the others' slices. A
// rank shows the next piece before it combines this one, so that nobody waits
// for a rank that has only just begun.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_STAGED_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_STAGED_H_

#include "absl/status/status.h"
#include "collectives/host_memory/call.h"

namespace tessera::collectives::direct {

absl::Status RunStaged(Call& call);

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_STAGED_H_
