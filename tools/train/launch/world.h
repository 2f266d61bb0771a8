// Joins all ranks of a job in one communicator, as the settings describe it.
//
//   TESSERA_ASSIGN_OR_RETURN(World world,
//                            JoinWorld(settings, ProcessEnvironment()));
//   world.communicator->Barrier();
//
// The settings' mesh is valid: files and flags are parsed, and RunAttempt
// checks it before ranks are started.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_WORLD_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_WORLD_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine.h"
#include "collectives/groups/host_hierarchy.h"
#include "collectives/record/flight_recorder.h"
#include "tools/train/report/collective_log.h"
#include "tools/train/settings/settings.h"
#include "topology/discovery/launcher_environment.h"

namespace tessera::train {

struct World {
  std::unique_ptr<collectives::Store>
      store;  // The rendezvous store; null if there is none.
  std::shared_ptr<CollectiveLog> collectives;  // Logs the communicator.
  std::unique_ptr<collectives::Communicator> communicator;
  // The location of each rank; empty if the engine does not span hosts.
  std::vector<collectives::RankLocation> locations;
  // Says on which network the data is not encrypted; empty if it is, or does
  // not leave the host, or with --quiet.
  std::string note;
};

// OK if this program can train over --engine on this machine. InvalidArgument
// if the engine does not exist, or does not encrypt if TESSERA_ENCRYPT_DATA is
// 1; FailedPrecondition if it was not built in;
// Unimplemented for nccl, whose buffers are device memory.
absl::Status CheckEngine(const Settings& settings);

// The launcher's environment variables for this process. With --engine=mpi,
// torchrun's variables are hidden, because an outer launcher may have set them.
topology::EnvironmentLookup RankVariables(
    const Settings& settings, const topology::EnvironmentLookup& lookup);

// Joins the other ranks, in a process that is one rank. A collective of the
// job. InvalidArgument if the job's size differs from the mesh's. Also returns
// errors of JoinJob and of the engine. `patience` is the longest time to wait
// for the other ranks; nullopt: --timeout_seconds. `observer` follows the
// operations of the world and its groups; null: nothing does.
absl::StatusOr<World> JoinWorld(
    const Settings& settings, const topology::EnvironmentLookup& lookup,
    std::optional<absl::Duration> patience = std::nullopt,
    std::shared_ptr<collectives::OperationObserver> observer = nullptr);

// Makes the world of a rank that is a thread. A collective of the threads that
// hold the engines of one CreateInProcessEngines call.
absl::StatusOr<World> MakeWorld(
    const Settings& settings, std::unique_ptr<collectives::Engine> engine,
    std::shared_ptr<collectives::OperationObserver> observer = nullptr);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_WORLD_H_
