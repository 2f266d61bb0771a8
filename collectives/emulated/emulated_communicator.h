// Creates communicators for tensors in the memory of an emulated device.
//
//   TESSERA_ASSIGN_OR_RETURN(auto device, EmulatedDevice::Create({.seed = 7}));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto communicator,
//       CreateEmulatedCommunicator(std::move(host), *device));
//   TESSERA_RETURN_IF_ERROR(communicator->RunOn(
//       queue, AllReduceOf(gradient, gradient, Reduction::Sum())));
//   TESSERA_RETURN_IF_ERROR(communicator->host().Barrier());
//
// A second group with the engine and options of `host` executes the operations,
// so results have the same bits as on the host. Each operation is a host
// function on a queue of the communicator. It declares the memory that it reads
// and writes, so the device detects a missing wait when the operation is
// enqueued. The device only starts the operation, which runs on a thread of the
// group, so that other queues continue.
//
//   operations                                 queue
//   collectives                                one per communicator
//   messages to a peer, messages from a peer   one per peer and direction
//
// An error of an operation (a deadline, a dead rank, a mismatch) breaks the
// communicator and its host(), and becomes the device's error.
#ifndef TESSERA_COLLECTIVES_EMULATED_EMULATED_COMMUNICATOR_H_
#define TESSERA_COLLECTIVES_EMULATED_EMULATED_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

// A collective over the ranks of `host`. `device` must execute host functions
// (Queue::Launch) and outlive the communicator. Returns the errors of
// Communicator::Subgroup.
absl::StatusOr<std::unique_ptr<Communicator>> CreateEmulatedCommunicator(
    std::unique_ptr<Communicator> host, Device& device);

// The engine of such a communicator ("emulated"), for Communicator::
// CreateOnDevice. Also a collective.
absl::StatusOr<std::unique_ptr<Engine>> CreateEmulatedEngine(Communicator& host,
                                                             Device& device);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_EMULATED_EMULATED_COMMUNICATOR_H_
