#include "collectives/shared_memory/run_shared_memory.h"
#include "collectives/testing/conformance_suite.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

EngineUnderTest SharedMemory() {
  EngineUnderTest engine;
  engine.name = "SharedMemory";
  engine.run = [](int64_t ranks, const RankBody& body,
                  const CommunicatorOptions& options) {
    std::vector<absl::Status> statuses;
    for (const RankOutcome& outcome : RunSharedMemory(ranks, body, options)) {
      statuses.push_back(outcome.status);
    }
    return statuses;
  };
  engine.keep_one_case_in = 3;
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Processes, ConformanceTest,
                         ::testing::Values(SharedMemory()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
