// The nccl engine: each rank is a GPU, with NVIDIA's NCCL.
//
//   TESSERA_ASSIGN_OR_RETURN(Job job, JoinJob(ProcessEnvironment()));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto engine, CreateNcclEngine(*job.store, {.device = local_rank}));
//
// Buffers are device memory of the rank's GPU. Implements every collective;
// uneven forms are groups of NCCL calls. Reductions are NCCL's own: f16 and
// bf16 are rounded at every hop, and the minimum and maximum of NaN are
// undefined. A call returns when the stream has executed the operation;
// completion is polled, so deadlines hold. There are no point-to-point messages
// yet: an NCCL communicator executes its calls one after the other, so messages
// of independent channels could deadlock.
//
// Errors. A rank that is missing at the deadline causes DeadlineExceeded, which
// names all other ranks because NCCL does not report which one is missing. Any
// error tears down the communicator, which ends its kernels; other ranks notice
// at their deadline.
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
  // The GPU of this rank; nullopt: the calling thread's current device.
  std::optional<int> device = std::nullopt;

  // The stream on which collectives run after its previous work; it must
  // outlive the engine. Nullopt: a stream of the engine; then the caller's work
  // on the buffers must be complete before a call.
  std::optional<cudaStream_t> stream = std::nullopt;

  // Distinguishes this world from others that use the same store. Must be equal
  // on all ranks.
  std::string name = "world";

  // If true, collectives start with an exchange of 32 bytes per rank, so that
  // mismatched calls fail at once with an error that shows both sides.
  // Otherwise they time out. Must be equal on all ranks.
  bool check_signatures = false;

  // The longest time to wait for the other ranks when creating the engine.
  absl::Duration timeout = absl::Seconds(120);
};

// Creates the world of all ranks of `store`, which must outlive the engine and
// its subgroups. Every rank calls it. InvalidArgument if an option is invalid;
// FailedPrecondition if there is no GPU or no such device; DeadlineExceeded or
// Unavailable naming the ranks that did not call it or died.
absl::StatusOr<std::unique_ptr<Engine>> CreateNcclEngine(
    Store& store, const NcclOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_ENGINE_H_
