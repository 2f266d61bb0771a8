// Collectives of messages that fit into notes: one synchronisation, the payload
// in the line of its flag.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_BY_NOTES_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_BY_NOTES_H_

#include "absl/status/status.h"
#include "collectives/host_memory/call.h"

namespace tessera::collectives::direct {

// Whether RunByNotes can carry out the call. The same on every rank. Not for an
// uneven all_to_all.
bool FitsNotes(const Call& call);
absl::Status RunByNotes(Call& call);

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_BY_NOTES_H_
