// StandInNccl: NCCL's functions for ranks that are threads with an emulated
// device each, so that tests run the engine without a GPU.
//
// It has NCCL's semantics, as far as the engine relies on them:
//
//   - A stream is a queue. A group of calls is one operation on it, executed
//     late, with the memory accesses of its calls.
//   - The calls of a communicator execute in order, on any queue; a call begins
//     when all its ranks have made it.
//   - Calls that do not match hang, and so does a call without a peer.
//   - CommAbort ends the calls of this rank without an error of the queue. It
//     does not notify other ranks.
//   - CommInit is in progress until all ranks have called it.
//
// Reductions fold the inputs in the order of the ranks and round once.
#ifndef TESSERA_COLLECTIVES_NCCL_TESTING_NCCL_STAND_IN_H_
#define TESSERA_COLLECTIVES_NCCL_TESTING_NCCL_STAND_IN_H_

#include "collectives/nccl/nccl_api.h"

namespace tessera::collectives {

const NcclApi& StandInNccl();

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_TESTING_NCCL_STAND_IN_H_
