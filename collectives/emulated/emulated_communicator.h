// Communicators of tensors in the memory of an emulated device.
//
//   TESSERA_ASSIGN_OR_RETURN(auto device, EmulatedDevice::Create({.seed = 7}));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto communicator,
//       CreateEmulatedCommunicator(std::move(host), *device));
//   TESSERA_RETURN_IF_ERROR(communicator->RunOn(
//       queue, AllReduceOf(gradient, gradient, Reduction::Sum())));
//   TESSERA_RETURN_IF_ERROR(communicator->host().Barrier());
//
// Operations are executed by a group beside `host`, with its engine and
// options, so that results have the bits of the host's. Each is a function of
// the host on a queue of the communicator's own, which declares the memory that
// it reads and writes: the device finds a missing wait when it is enqueued. The
// device only starts it; the operation runs on a thread of the group, so that
// other queues go on.
//
//   operations                                 queue
//   collectives                                one per communicator
//   messages to a peer, messages from a peer   one per peer and direction
//
// An error of an operation (a deadline, a dead rank, a mismatch) breaks the
// communicator and its host(), and is the device's error from then on.
#ifndef TESSERA_COLLECTIVES_EMULATED_EMULATED_COMMUNICATOR_H_
#define TESSERA_COLLECTIVES_EMULATED_EMULATED_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

// A collective over the ranks of `host`. `device` does functions of the host
// (Queue::Launch) and outlives the communicator. Errors of
// Communicator::Subgroup.
absl::StatusOr<std::unique_ptr<Communicator>> CreateEmulatedCommunicator(
    std::unique_ptr<Communicator> host, Device& device);

// The engine of such a communicator ("emulated"), for Communicator::
// CreateOnDevice. A collective too.
absl::StatusOr<std::unique_ptr<Engine>> CreateEmulatedEngine(Communicator& host,
                                                             Device& device);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_EMULATED_EMULATED_COMMUNICATOR_H_
