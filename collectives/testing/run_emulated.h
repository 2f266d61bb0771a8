// RunEmulated: runs the body of a test on every rank of a world, as threads
// with an emulated device each.
//
//   EXPECT_THAT(RunEmulated(4, /*seed=*/1, [](EmulatedRank& rank) {
//     return rank.communicator.RunOn(rank.queue, BarrierOf());
//   }), ::testing::Each(IsOk()));
#ifndef TESSERA_COLLECTIVES_TESTING_RUN_EMULATED_H_
#define TESSERA_COLLECTIVES_TESTING_RUN_EMULATED_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "base/device/emulated_device.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"

namespace tessera::collectives {

struct EmulatedRank {
  Communicator& communicator;
  EmulatedDevice& device;
  Queue& queue;
};

using EmulatedBody = std::function<absl::Status(EmulatedRank&)>;

// Returns the statuses of the bodies, by rank. A rank whose body fails aborts
// its group.
std::vector<absl::Status> RunEmulated(int64_t ranks, uint64_t seed,
                                      const EmulatedBody& body,
                                      const CommunicatorOptions& options = {});

// Runs a body with host buffers (StageBuffers) on a new device of this rank,
// with a communicator over the ranks of `host`.
absl::Status RunStaged(Communicator& host, uint64_t seed, const RankBody& body);

// Like RunStaged, on every rank of a world, as threads.
std::vector<absl::Status> RunStagedRanks(int64_t ranks, uint64_t seed,
                                         const RankBody& body,
                                         const CommunicatorOptions& options);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_RUN_EMULATED_H_
