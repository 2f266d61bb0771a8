// RunRanks and RunProcesses: run the body of a test on every rank of a world,
// as threads or as processes.
//
//   EXPECT_THAT(RunRanks(4, [](Communicator& communicator) {
//     return communicator.Barrier();
//   }), ::testing::Each(IsOk()));
#ifndef TESSERA_COLLECTIVES_TESTING_RUN_RANKS_H_
#define TESSERA_COLLECTIVES_TESTING_RUN_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/bootstrap/store.h"
#include "collectives/communicator.h"
#include "collectives/shared_memory/shared_memory.h"

namespace tessera::collectives {

using RankBody = std::function<absl::Status(Communicator&)>;

// Returns the statuses of the bodies, by rank. A rank whose body fails aborts
// its group, so that the others do not wait for it.
std::vector<absl::Status> RunRanks(int64_t ranks, const RankBody& body,
                                   const CommunicatorOptions& options = {});

// Like RunRanks, on given engines, one per rank.
std::vector<absl::Status> RunRanksOn(
    absl::StatusOr<std::vector<std::unique_ptr<Engine>>> engines,
    const RankBody& body, const CommunicatorOptions& options = {});

// The result of one rank of RunProcesses.
struct RankOutcome {
  absl::Status status;  // Status of the body; Unknown if it did not return.
  int signal = 0;       // Signal that killed the process; 0 if it exited.
  absl::Duration took;  // From the fork to the status.
};

// Creates the engine of a rank, in its process.
using EngineOfRank =
    std::function<absl::StatusOr<std::unique_ptr<Engine>>(int64_t rank)>;

// Runs the body on every rank of a world, as forked processes.
//
//   const std::vector<RankOutcome> outcomes = RunProcesses(
//       4, [&](int64_t rank) { return MakeEngine(rank); },
//       [](Communicator& communicator) { return communicator.Barrier(); });
//   EXPECT_THAT(outcomes[0].status, IsOk());
//
// A child that stops or does not return is killed when the others are done or
// at the deadline.
//
// Returns the outcomes by rank. A failed GoogleTest expectation in a child
// becomes an Internal status. `forked` is called in the parent after all forks.
std::vector<RankOutcome> RunProcesses(int64_t ranks, const EngineOfRank& engine,
                                      const RankBody& body,
                                      const CommunicatorOptions& options = {},
                                      absl::Duration limit = absl::Seconds(60),
                                      const std::function<void()>& forked = {});

// Creates the engine of a rank, in its process, from the job's store.
using EngineOfStore =
    std::function<absl::StatusOr<std::unique_ptr<Engine>>(Store& store)>;

// Like RunProcesses, for ranks that meet through a store.
std::vector<RankOutcome> RunOverStore(int64_t ranks,
                                      const EngineOfStore& create,
                                      const RankBody& body,
                                      const CommunicatorOptions& options = {});

// Runs the body of a test on processes that share memory.
std::vector<RankOutcome> RunSharedMemory(
    int64_t ranks, const RankBody& body,
    const CommunicatorOptions& options = {},
    const SharedMemoryOptions& shared_memory = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_RUN_RANKS_H_
