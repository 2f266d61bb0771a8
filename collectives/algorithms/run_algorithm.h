// RunAlgorithm: carries out a collective over point-to-point messages.
//
//   TESSERA_RETURN_IF_ERROR(RunAlgorithm(
//       Algorithm::kRing, AllReduceOf(in, out, Reduction::Sum()), transport,
//       {.chunk_bytes = 64 << 10}, context));
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_RUN_ALGORITHM_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_RUN_ALGORITHM_H_

#include "absl/status/status.h"
#include "collectives/algorithms/algorithm_options.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/transport.h"
#include "collectives/operation/algorithm.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {

// Carries out `operation`, which ValidateOperation accepts, by `algorithm`.
// Called by every rank of the transport's group with the same arguments but for
// the buffers; some ranks may work in place and others not. Returns when this
// rank's part is done, its buffers may be reused and no request is left.
//
// Messages carry the context's signature on the collective lane. Works under
// rendezvous and under eager sends alike. Scratch comes from the context; how
// much each algorithm takes is in the README.
//
// InvalidArgument, before anything was sent, where Supports says no or an
// option cannot be. Errors of the transport come back with their code, behind
// the algorithm and the step; requests may then be under way, and the group is
// broken.
absl::Status RunAlgorithm(Algorithm algorithm, const Operation& operation,
                          Transport& transport, const AlgorithmOptions& options,
                          OperationContext& context);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_RUN_ALGORITHM_H_
