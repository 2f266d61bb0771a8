// Creates communicators for tensors in device memory, for ranks that are
// threads of one process: on one GPU, on GPUs that reach each other's memory,
// or emulated.
//
//   // On every rank's thread, with an in-process communicator:
//   TESSERA_ASSIGN_OR_RETURN(
//       auto communicator,
//       native::CreateCudaCommunicator(std::move(host), *device));
//   TESSERA_RETURN_IF_ERROR(communicator->RunOn(
//       queue, AllReduceOf(gradient, gradient, Reduction::Sum())));
//
// Supports all kinds of operations, types and reductions. Reductions fold the
// inputs in rank order and round once, with the bits of the CPU
// (reduction/combine.h). A collective is one kernel for each rank that reads
// the inputs of all ranks and writes outputs directly: all_reduce reads and
// writes each rank's buffer once. There is only one algorithm: all ranks must
// request the same algorithm, but the request has no effect.
//
// The host does not wait for work. A queue that waits for an operation makes
// the host wait until the other ranks have called it (device_group.h).
//
// Buffers are device memory, or host memory that the device can access
// (Device::staging_memory). Ranks that are processes use nccl.
//
// namespace   kernels        devices
// native      on the GPU     CUDA devices; one may serve several ranks
// emulated    on the CPU     an EmulatedDevice or HostDevice, one for all ranks
#ifndef TESSERA_COLLECTIVES_CUDA_CUDA_COMMUNICATOR_H_
#define TESSERA_COLLECTIVES_CUDA_CUDA_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

// CreateCudaCommunicator: a collective over the ranks of `host`, which the
// result owns. `device` must outlive the communicator. FailedPrecondition if
// the ranks of `host` are not threads of one process, are more than 64, or two
// of their devices cannot access each other's memory.
//
// CreateCudaEngine: the engine of such a communicator ("cuda"), for
// Communicator::CreateOnDevice. Also a collective.

// Both return Unimplemented in a build without the CUDA toolkit.
namespace native {
absl::StatusOr<std::unique_ptr<Communicator>> CreateCudaCommunicator(
    std::unique_ptr<Communicator> host, Device& device);
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(Communicator& host,
                                                         Device& device);
}  // namespace native

namespace emulated {
absl::StatusOr<std::unique_ptr<Communicator>> CreateCudaCommunicator(
    std::unique_ptr<Communicator> host, Device& device);
absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(Communicator& host,
                                                         Device& device);
}  // namespace emulated

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CUDA_CUDA_COMMUNICATOR_H_
