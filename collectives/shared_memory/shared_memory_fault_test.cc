#include "collectives/testing/fault_suite.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

EngineUnderFault SharedMemory() {
  EngineUnderFault engine;
  engine.name = "SharedMemory";
  engine.has_tags = true;
  engine.run = [](int64_t ranks, const RankBody& body,
                  const CommunicatorOptions& options) {
    return RunSharedMemory(ranks, body, options);
  };
  engine.ranks_are_processes = true;
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Processes, FaultTest,
                         ::testing::Values(SharedMemory()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
