// RunRanks: a test's body on every rank of a world, as threads.
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
#include "collectives/communicator.h"

namespace tessera::collectives {

using RankBody = std::function<absl::Status(Communicator&)>;

// The statuses of the bodies, by rank. A rank whose body fails aborts its
// group, so that the others do not wait for it.
std::vector<absl::Status> RunRanks(int64_t ranks, const RankBody& body,
                                   const CommunicatorOptions& options = {});

// The same on given engines, one a rank.
std::vector<absl::Status> RunRanksOn(
    absl::StatusOr<std::vector<std::unique_ptr<Engine>>> engines,
    const RankBody& body, const CommunicatorOptions& options = {});

// RunProcesses: a test's body on every rank of a world, as forked processes.
//
//   const std::vector<RankOutcome> outcomes = RunProcesses(
//       4, [&](int64_t rank) { return MakeEngine(rank); },
//       [](Communicator& communicator) { return communicator.Barrier(); });
//   EXPECT_THAT(outcomes[0].status, IsOk());
//
// Every child ends: one that stops itself or does not return is killed once the
// others are done or the time is up.

struct RankOutcome {
  absl::Status status;  // Of the body; Unknown where it did not return.
  int signal = 0;       // That ended the process; 0 where it exited.
  absl::Duration took;  // From the fork to the status.
};

// Makes the engine of a rank, within its process.
using EngineOfRank =
    std::function<absl::StatusOr<std::unique_ptr<Engine>>(int64_t rank)>;

// The outcomes by rank. A failed expectation of GoogleTest in a child is an
// Internal status. `forked` is called in the parent when all ranks are there.
std::vector<RankOutcome> RunProcesses(int64_t ranks, const EngineOfRank& engine,
                                      const RankBody& body,
                                      const CommunicatorOptions& options = {},
                                      absl::Duration limit = absl::Seconds(60),
                                      const std::function<void()>& forked = {});

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_RUN_RANKS_H_
