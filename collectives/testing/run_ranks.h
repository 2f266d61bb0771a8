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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_RUN_RANKS_H_
