// Communicators of tensors in the memory of GPUs, with NVIDIA's NCCL.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto communicator,
//       CreateNcclCommunicator(std::move(host), *cuda_device));
//   TESSERA_RETURN_IF_ERROR(communicator->RunOn(
//       queue, AllReduceOf(gradient, gradient, Reduction::Sum())));
//   TESSERA_RETURN_IF_ERROR(communicator->host().Barrier());
//
// Each rank is a GPU. Start enqueues NCCL's calls on the caller's thread, in
// the order of the program, on queues of the engine's own; the host waits for
// nobody. Uneven forms, gather, scatter and all_to_all are groups of NCCL
// calls. Reductions are NCCL's own: f16 and bf16 are rounded at every hop, and
// the minimum and maximum of NaN are undefined. NCCL chooses its algorithm: a
// call that asks for another one is Unimplemented.
//
//   operations                                 NCCL communicator and queue
//   collectives                                one of all ranks
//   messages to a peer, messages from a peer   one of two ranks each
//
// NCCL executes the calls of a communicator one after the other, so messages of
// independent channels need communicators of their own. The watchers of two
// ranks create both (one per direction) when one of the ranks has the first
// message for the other; that call waits for the connection, which takes some
// tens of milliseconds and does not depend on what the other rank's program
// does. A message to itself is copied; its receive comes after its send.
// The first gather, scatter, all_to_all of a group waits for the other ranks'
// call, because NCCL connects their peers then.
//
// The GPU executes calls of several communicators at the same time if it has
// queues for them: set CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment where
// a rank has more than 8 queues with work that waits.
//
// Errors. A watcher (nccl_watcher.h) ends calls at their deadlines and names
// the ranks that have not come, finds calls that differ, and dead ranks. An
// error breaks the communicator and its host() on all ranks, then aborts NCCL's
// kernels. The device goes on with what was enqueued behind them, on undefined
// data: Work::Wait and Communicator::status return the error, Queue::Wait and
// Queue::Synchronize do not.
//
// Several ranks on one GPU, for tests: one process each, with its own
// NCCL_HOSTID.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/device/device.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine.h"
#include "collectives/nccl/nccl_api.h"

namespace tessera::collectives {

struct NcclOptions {
  // The longest time to connect to other ranks: for all of them when the
  // communicator is created, for a peer at the first message.
  absl::Duration connect_timeout = absl::Seconds(120);
  // The period of the watchers' exchange. Bounds how late an error of another
  // rank is noticed. One all-gather of about 600 bytes per rank on the host.
  absl::Duration pulse = absl::Milliseconds(20);
  // The most thread blocks of a message: its share of the GPU while it waits
  // for its peer. 0: as NCCL chooses.
  int message_blocks = 4;
};

// A collective over the ranks of `host`, whose options and name it has. The
// device outlives the communicator. InvalidArgument if an option or the device
// is invalid; Unimplemented if this program was built without NCCL; errors of
// Communicator::Subgroup; DeadlineExceeded if the ranks do not connect in time.
absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(
    std::unique_ptr<Communicator> host, Device& device,
    const NcclOptions& options = {});

// The engine of such a communicator ("nccl") on a given library, for
// Communicator::CreateOnDevice. A collective too. `api` outlives the engine.
absl::StatusOr<std::unique_ptr<Engine>> CreateNcclEngine(
    Communicator& host, Device& device, const NcclApi& api,
    const NcclOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
