// Runs the body of a test on processes that share memory.
#ifndef TESSERA_COLLECTIVES_SHARED_MEMORY_RUN_SHARED_MEMORY_H_
#define TESSERA_COLLECTIVES_SHARED_MEMORY_RUN_SHARED_MEMORY_H_

#include <cstdint>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/shared_memory/shared_memory.h"
#include "collectives/testing/run_ranks.h"

namespace tessera::collectives {

std::vector<RankOutcome> RunSharedMemory(
    int64_t ranks, const RankBody& body,
    const CommunicatorOptions& options = {},
    const SharedMemoryOptions& shared_memory = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_SHARED_MEMORY_RUN_SHARED_MEMORY_H_
