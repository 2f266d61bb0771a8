// Creates communicators for tensors in GPU memory, over NVIDIA's NCCL.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto communicator,
//       CreateNcclCommunicator(std::move(host), *cuda_device));
//   TESSERA_RETURN_IF_ERROR(communicator->RunOn(
//       queue, AllReduceOf(gradient, gradient, Reduction::Sum())));
//   TESSERA_RETURN_IF_ERROR(communicator->host().Barrier());
//
// Each rank has its own GPU. Start enqueues NCCL's calls on the caller's
// thread, in program order, on the engine's own queues; the host does not wait
// for other ranks. Uneven forms, gather, scatter and all_to_all are groups of
// NCCL calls. NCCL performs the reductions: f16 and bf16 are rounded at every
// hop, and the minimum and maximum of NaN are undefined. NCCL also chooses the
// algorithm: a call that requests another algorithm is Unimplemented.
//
//   operations                                 NCCL communicator and queue
//   collectives                                one of all ranks
//   messages to a peer, messages from a peer   one of two ranks each
//
// NCCL executes the calls of a communicator one after the other, so messages of
// independent channels use separate communicators. At the first message between
// two ranks their watchers create two communicators, one per direction. That
// call waits for the connection, which takes some tens of milliseconds and does
// not depend on the other rank's program. A message to itself is copied; its
// receive must come after its send. The first gather, scatter or all_to_all of
// a group waits until the other ranks call it, because NCCL then connects
// peers.
//
// The GPU executes calls of several communicators at the same time if it has
// enough hardware queues: set CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment
// if a rank has more than 8 queues with waiting work.
//
// Errors. A watcher (nccl_watcher.h) ends calls at their deadlines, names the
// ranks that did not call in time, and detects mismatched calls and dead ranks.
// An error breaks the communicator and its host() on all ranks, then aborts
// NCCL's kernels. The device executes the work enqueued after them on undefined
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
  // The longest time to connect to all ranks when the communicator is created,
  // or to a peer at the first message.
  absl::Duration connect_timeout = absl::Seconds(120);
  // The period of the watchers' exchange, an all-gather of about 600 bytes per
  // rank on the host. Bounds the delay until other ranks' errors are detected.
  absl::Duration pulse = absl::Milliseconds(20);
  // The maximum number of thread blocks of a message, which it occupies while
  // it waits for its peer. 0: NCCL chooses.
  int message_blocks = 4;
};

// A collective over the ranks of `host`; the result has the options and name of
// `host`. The device must outlive the communicator. InvalidArgument if an
// option or the device is invalid; Unimplemented if this program was built
// without NCCL; errors of Communicator::Subgroup; DeadlineExceeded if the ranks
// do not connect in time.
absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(
    std::unique_ptr<Communicator> host, Device& device,
    const NcclOptions& options = {});

// The engine of such a communicator ("nccl") on a given library, for
// Communicator::CreateOnDevice. Also a collective. `api` must outlive the
// engine.
absl::StatusOr<std::unique_ptr<Engine>> CreateNcclEngine(
    Communicator& host, Device& device, const NcclApi& api,
    const NcclOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_COMMUNICATOR_H_
