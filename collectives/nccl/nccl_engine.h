// nccl: each rank is a GPU, through NVIDIA's NCCL.
//
//   TESSERA_ASSIGN_OR_RETURN(Job job, JoinJob(ProcessEnvironment()));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto engine, CreateNcclEngine(*job.store, {.device = local_rank}));
//
// Buffers are device memory that the rank's GPU reaches. Implements every
// collective, uneven forms by groups of NCCL calls; reductions are NCCL's own
// (f16 and bf16 are rounded at every hop, minimum and maximum leave open what a
// NaN gives). Returns when the stream has carried the operation out: completion
// is asked for, never waited for, so deadlines hold. It has no messages yet:
// one NCCL communicator carries out its calls one after the other, so that
// messages of independent channels could wait for each other for good.
//
// Errors. A rank that is missing at the deadline is a DeadlineExceeded that
// names all others: NCCL does not say which. At any error the communicator is
// torn down, which ends its kernels; other ranks find out at their deadline.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_ENGINE_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/engine.h"
#include "collectives/nccl/nccl_options.h"

namespace tessera::collectives {

// The world of all ranks of `store`, which outlives the engine and its
// subgroups. Called by every rank. InvalidArgument where an option cannot be;
// FailedPrecondition where there is no GPU or no such device;
// DeadlineExceeded or Unavailable naming the ranks that did not come.
absl::StatusOr<std::unique_ptr<Engine>> CreateNcclEngine(
    Store& store, const NcclOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_ENGINE_H_
