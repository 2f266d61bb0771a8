// in_process: ranks are threads of one process.
//
//   TESSERA_ASSIGN_OR_RETURN(auto engines, CreateInProcessEngines(4));
//   std::thread rank0([engine = std::move(engines[0])]() mutable {
//     auto communicator = Communicator::Create(std::move(engine));
//     ...
//   });
//
// For embedding, and the reference for tests. Every rank reaches every buffer,
// so that nothing is staged and nothing copied twice.
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

  // False: buffers are treated as if they were another process's, and staged.
  // For tests of that.
  bool reach_buffers = true;
};

// The engines of a new world, by rank. Each belongs to one thread at a time,
// and a rank has left when its engine is destroyed. InvalidArgument where there
// is no rank or the tuning cannot be.
absl::StatusOr<std::vector<std::unique_ptr<Engine>>> CreateInProcessEngines(
    int64_t ranks, const InProcessOptions& options = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_IN_PROCESS_IN_PROCESS_H_
