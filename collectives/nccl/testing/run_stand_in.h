// RunStandIn: runs the body of a test on every rank of a world, as threads with
// an emulated device each and the nccl engine over the stand-in.
#ifndef TESSERA_COLLECTIVES_NCCL_TESTING_RUN_STAND_IN_H_
#define TESSERA_COLLECTIVES_NCCL_TESTING_RUN_STAND_IN_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "base/device/emulated_device.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_api.h"
#include "collectives/nccl/testing/nccl_stand_in.h"
#include "collectives/testing/run_ranks.h"

namespace tessera::collectives {

struct StandInRank {
  Communicator& communicator;
  EmulatedDevice& device;
  Queue& queue;
};

using StandInBody = std::function<absl::Status(StandInRank&)>;

// Returns the statuses of the bodies, by rank. A rank whose body fails aborts
// its group.
std::vector<absl::Status> RunStandIn(int64_t ranks, uint64_t seed,
                                     const StandInBody& body,
                                     const CommunicatorOptions& options = {},
                                     const NcclApi& api = StandInNccl());

// Like RunStandIn, for a body with host buffers (StageBuffers).
std::vector<absl::Status> RunStagedStandIn(int64_t ranks, uint64_t seed,
                                           const RankBody& body,
                                           const CommunicatorOptions& options);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_TESTING_RUN_STAND_IN_H_
