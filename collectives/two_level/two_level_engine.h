// The two_level engine: ranks on several hosts, which use shared memory within
// each host and another engine, such as gloo or mpi, between hosts.
//
//   TESSERA_ASSIGN_OR_RETURN(Job job, JoinJob(ProcessEnvironment()));
//   TESSERA_ASSIGN_OR_RETURN(
//       auto engine,
//       CreateTwoLevelEngine(*job.store, {}, [&] {
//         return CreateGlooEngine(*job.store, {.interface = "eth0"});
//       }));
//
// Implements all_reduce, all_gather, reduce_scatter, all_to_all, broadcast and
// barrier (two_level_collectives.h) if the ranks of each host are consecutive;
// other collectives run as algorithms over its messages, which take the way
// that leads to their peer.
//
// Reductions of f64, f32 and integers other than scaled sums fold the inputs in
// rank order, so that all divisions of the ranks into hosts give the same bits.
//
// Subgroups within a host are groups of its shared memory; subgroups with one
// rank on each host are groups of the other engine.
//
// Errors. A rank that dies or fails ends the calls of the ranks of its host
// through shared memory, and those of the others by closing connections; they
// learn the reason through the store. Between hosts the data is encrypted only
// if the other engine does so (GlooOptions::encrypt).
#ifndef TESSERA_COLLECTIVES_TWO_LEVEL_TWO_LEVEL_ENGINE_H_
#define TESSERA_COLLECTIVES_TWO_LEVEL_TWO_LEVEL_ENGINE_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/engine.h"
#include "collectives/shared_memory/shared_memory.h"
#include "collectives/two_level/failure_store.h"
#include "collectives/two_level/host_map.h"

namespace tessera::collectives {

struct TwoLevelOptions {
  // Its name, timeout and tuning are also those of the engine; its members are
  // chosen.
  SharedMemoryOptions shared_memory = {};

  // The host of this rank, for tests of several hosts on one. Empty: HostId.
  std::string host = "";
};

// Creates this rank's engine in a new world of all ranks of `store`, which must
// outlive it. A collective. `create_network` creates the engine between hosts
// for all ranks of the store. On one host the result is the shared_memory
// engine, and with one rank per host that of `create_network`. Errors of both
// engines; InvalidArgument if the network has no messages or other ranks.
absl::StatusOr<std::unique_ptr<Engine>> CreateTwoLevelEngine(
    Store& store, const TwoLevelOptions& options,
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<Engine>>()>
        create_network);

// Joins two engines: `within` for the ranks of this rank's host, in the order
// of `map`, and `network` for all ranks. Without `failures` an error on another
// host appears as a lost connection. InvalidArgument if they do not match.
absl::StatusOr<std::unique_ptr<Engine>> JoinEngines(
    HostMap map, std::unique_ptr<Engine> within,
    std::unique_ptr<Engine> network,
    std::shared_ptr<FailureStore> failures = nullptr);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TWO_LEVEL_TWO_LEVEL_ENGINE_H_
