// Collectives that only move bytes, through windows.
//
// Each rank that has something to give shows it as a stream, piece by piece;
// each rank takes from every stream the segment that it needs.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_STAGED_MOVE_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_STAGED_MOVE_H_

#include "absl/status/status.h"
#include "collectives/host_memory/call.h"

namespace tessera::collectives::direct {

// all_gather, broadcast, gather, scatter, all_to_all; even and uneven.
absl::Status RunStagedMove(Call& call);

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_STAGED_MOVE_H_
