// RunAlgorithm: executes a collective over point-to-point messages.
//
//   TESSERA_RETURN_IF_ERROR(RunAlgorithm(
//       Algorithm::kRing, AllReduceOf(in, out, Reduction::Sum()), transport,
//       {.chunk_bytes = 64 << 10}, context));
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_RUN_ALGORITHM_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_RUN_ALGORITHM_H_

#include "absl/status/status.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/transport.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// Executes a valid `operation` (see ValidateOperation) with `algorithm`. Every
// rank of the transport's group calls it with the same arguments except for the
// buffers; only some of the ranks may work in place. Returns when this rank's
// part is done and its buffers may be reused; no requests remain.
//
// Messages use the collective lane with the context's signature. Works with
// rendezvous and eager sends. Scratch memory comes from the context;
// docs/collective_algorithms.md lists how much each algorithm uses.
//
// InvalidArgument, before anything was sent, if Supports returns false or an
// option is invalid. Transport errors keep their code and are prefixed with the
// algorithm and step; requests may then still be in flight, and the group is
// broken.
absl::Status RunAlgorithm(Algorithm algorithm, const Operation& operation,
                          Transport& transport, const AlgorithmOptions& options,
                          OperationContext& context);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_RUN_ALGORITHM_H_
