// World: the group of all ranks, as a rank's settings describe it.
//
//   TESSERA_ASSIGN_OR_RETURN(World world,
//                            JoinWorld(settings, ProcessEnvironment()));
//   world.communicator->Barrier();
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_WORLD_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_WORLD_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/bootstrap/store.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine.h"
#include "tools/train/loop/collective_log.h"
#include "tools/train/settings/settings.h"
#include "topology/discovery/launcher_environment.h"

namespace tessera::train {

struct World {
  std::unique_ptr<collectives::Store> store;   // Where the ranks met, if so.
  std::shared_ptr<CollectiveLog> collectives;  // Of the communicator.
  std::unique_ptr<collectives::Communicator> communicator;
};

// Ranks of --mesh. InvalidArgument as topology::ParseAxes.
absl::StatusOr<int64_t> WorldSize(const Settings& settings);

// OK where this program can train over --engine on this machine.
// InvalidArgument where there is no such engine; FailedPrecondition where it
// was not built in; Unimplemented for nccl, whose buffers are device memory.
absl::Status CheckEngine(const Settings& settings);

// What a launcher's variables say about this process, without those of an outer
// one that count nothing here: under mpirun alone MPI's own.
topology::EnvironmentLookup RankVariables(
    const Settings& settings, const topology::EnvironmentLookup& lookup);

// A process that is one rank finds the others. A collective. InvalidArgument
// where the job has another number of ranks than the mesh; else what JoinJob
// and the engine refuse.
absl::StatusOr<World> JoinWorld(const Settings& settings,
                                const topology::EnvironmentLookup& lookup);

// A rank that is a thread: a collective of the threads that have the engines of
// one CreateInProcessEngines.
absl::StatusOr<World> MakeWorld(const Settings& settings,
                                std::unique_ptr<collectives::Engine> engine);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_WORLD_H_
