// Collectives that copy data through notes (short messages) and windows.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_STAGED_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_STAGED_H_

#include "absl/status/status.h"
#include "collectives/host_memory/call.h"

namespace tessera::collectives::host_memory {

// Returns true if RunByNotes can execute the call: the message fits into notes
// and is not an uneven all_to_all. The same on every rank.
bool FitsNotes(const Call& call);

// Executes the call with one synchronisation; the payload shares the cache line
// of its flag.
absl::Status RunByNotes(Call& call);

// Executes any collective on ordinary buffers, piece by piece through windows
// that stay in the caches.
//
// all_reduce and reduce take two phases: every rank publishes its piece,
// reduces its slice of all ranks' pieces, publishes the result and collects the
// other slices. A rank publishes the next piece before it reduces the current
// one, so that no rank waits for a rank that has just started.
//
// If data only moves, every sender publishes a stream of pieces and every rank
// copies the segments that it needs.
absl::Status RunStaged(Call& call);

}  // namespace tessera::collectives::host_memory

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_STAGED_H_
