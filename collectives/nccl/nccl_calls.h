// EnqueueCollective: a collective as calls of NCCL.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_CALLS_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_CALLS_H_

#include <cstdint>

#include "collectives/nccl/nccl_api.h"
#include "collectives/operation/operation.h"
#include "topology/rank.h"

namespace tessera::collectives {

// One rank of an NCCL communicator, and the stream of its calls.
struct NcclRank {
  const NcclApi& api;
  NcclComm comm;
  NcclStream stream;
  int64_t rank = 0;
  int64_t size = 1;
};

// Enqueues a valid collective within an NCCL group. A barrier reduces one byte
// of device memory at `word`. An all_to_all must not be in place.
NcclResult EnqueueCollective(const NcclRank& rank, const Operation& operation,
                             void* word);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_CALLS_H_
