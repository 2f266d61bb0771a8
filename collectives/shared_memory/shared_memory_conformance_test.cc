#include "collectives/testing/conformance_suite.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

EngineUnderTest With(const SharedMemoryOptions& shared_memory) {
  EngineUnderTest engine;
  engine.run = [shared_memory](int64_t ranks, const RankBody& body,
                               const CommunicatorOptions& options) {
    std::vector<absl::Status> statuses;
    for (const RankOutcome& outcome :
         RunSharedMemory(ranks, body, options, shared_memory)) {
      statuses.push_back(outcome.status);
    }
    return statuses;
  };
  return engine;
}

EngineUnderTest SharedMemory() {
  EngineUnderTest engine = With({});
  engine.name = "SharedMemory";
  engine.keep_one_case_in = 3;
  return engine;
}

// Simulates one processor per rank: the kernel copies ordinary buffers of all
// sizes.
EngineUnderTest KernelCopies() {
  SharedMemoryOptions options;
  options.tuning.processors = 64;
  options.tuning.spins = 20;
  options.tuning.zero_copy_bytes = 0;
  options.tuning.place_skips = 0;
  options.tuning.peer_copy_bytes = 0;
  EngineUnderTest engine = With(options);
  engine.name = "KernelCopies";
  engine.keep_one_case_in = 10;
  engine.random_operations = 300;
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Processes, ConformanceTest,
                         ::testing::Values(SharedMemory(), KernelCopies()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
