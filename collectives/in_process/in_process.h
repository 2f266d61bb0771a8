// in_process: ranks are threads of one process.
//
//   TESSERA_ASSIGN_OR_RETURN(auto engines, CreateInProcessEngines(4));
//   std::thread rank0([engine = std::move(engines[0])]() mutable {
//     auto communicator = Communicator::Create(std::move(engine));
//     ...
//   });
//
// For embedding and as the reference for tests. Every rank can access every
// buffer, so data is not staged or copied twice.
#ifndef TESSERA_COLLECTIVES_IN_PROCESS_IN_PROCESS_H_
#define TESSERA_COLLECTIVES_IN_PROCESS_IN_PROCESS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/engine/engine.h"
#include "collectives/host_memory/tuning.h"

namespace tessera::collectives {

struct InProcessOptions {
  Tuning tuning = {};

  // If false, buffers are staged as if they belonged to other processes. For
  // tests.
  bool reach_buffers = true;
};

// Creates the engines of a new world, by rank. One thread at a time may use an
// engine; a rank leaves when its engine is destroyed. InvalidArgument if
// `ranks` is less than 1 or the tuning is invalid.
absl::StatusOr<std::vector<std::unique_ptr<Engine>>> CreateInProcessEngines(
    int64_t ranks, const InProcessOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_IN_PROCESS_IN_PROCESS_H_
