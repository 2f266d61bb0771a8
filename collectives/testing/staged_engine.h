// StageBuffers: lets tests written for host buffers run on an engine that
// enqueues on a device.
//
//   TESSERA_ASSIGN_OR_RETURN(auto engine, CreateEmulatedEngine(*host, device));
//   auto communicator = Communicator::CreateOnDevice(
//       std::move(host), StageBuffers(std::move(engine), device));
//   communicator->AllReduce(Buffer(std::span(values)), Reduction::Sum());
//
// An operation uploads its inputs, runs on device memory of the same alignment,
// and downloads its outputs. AllocateShared returns host memory.
#ifndef TESSERA_COLLECTIVES_TESTING_STAGED_ENGINE_H_
#define TESSERA_COLLECTIVES_TESTING_STAGED_ENGINE_H_

#include <memory>

#include "base/device/device.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

// `engine` enqueues on `device`, which outlives the result.
std::unique_ptr<Engine> StageBuffers(std::unique_ptr<Engine> engine,
                                     Device& device);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_STAGED_ENGINE_H_
