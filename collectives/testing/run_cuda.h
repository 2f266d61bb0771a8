// RunCuda: runs the body of a test on every rank of a world, as threads on one
// device, with communicators of the cuda engine and emulated kernels.
//
//   EXPECT_THAT(RunCuda(4, *device, [](CudaRank& rank) {
//     return rank.communicator.RunOn(rank.queue, BarrierOf());
//   }), ::testing::Each(IsOk()));
#ifndef TESSERA_COLLECTIVES_TESTING_RUN_CUDA_H_
#define TESSERA_COLLECTIVES_TESTING_RUN_CUDA_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"

namespace tessera::collectives {

struct CudaRank {
  Communicator& communicator;
  Device& device;
  Queue& queue;
};

using CudaBody = std::function<absl::Status(CudaRank&)>;

// Returns the statuses of the bodies, by rank. A rank whose body fails aborts
// its group.
std::vector<absl::Status> RunCuda(int64_t ranks, Device& device,
                                  const CudaBody& body,
                                  const CommunicatorOptions& options = {});

// Like RunCuda on a new emulated device, for a body with host buffers
// (StageBuffers).
std::vector<absl::Status> RunStagedCuda(int64_t ranks, uint64_t seed,
                                        const RankBody& body,
                                        const CommunicatorOptions& options);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_RUN_CUDA_H_
