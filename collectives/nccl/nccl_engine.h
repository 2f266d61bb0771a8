// What the nccl engine can be told.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_ENGINE_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_ENGINE_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

struct NcclOptions {
  // The GPU of this rank; none: the calling thread's current device.
  std::optional<int> device = std::nullopt;

  // The stream that collectives run on, behind what is there already; it
  // outlives the engine. None: one of the engine's own. Then the caller's work
  // on the buffers must be done before it calls.
  std::optional<cudaStream_t> stream = std::nullopt;

  // Tells this world from others that meet at the same store; the same on all
  // ranks.
  std::string name = "world";

  // Every collective begins with an exchange of 32 bytes a rank: calls that do
  // not match are errors at once, which show both sides. Otherwise the ranks
  // wait for each other until the deadline. The same on all ranks.
  bool check_signatures = false;

  // How long the ranks wait for each other when the engine is created.
  absl::Duration timeout = absl::Seconds(120);
};

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

// The world of all ranks of `store`, which outlives the engine and its
// subgroups. Called by every rank. InvalidArgument where an option cannot be;
// FailedPrecondition where there is no GPU or no such device;
// DeadlineExceeded or Unavailable naming the ranks that did not come.
absl::StatusOr<std::unique_ptr<Engine>> CreateNcclEngine(
    Store& store, const NcclOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_ENGINE_H_
