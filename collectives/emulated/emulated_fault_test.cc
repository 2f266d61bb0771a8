#include "collectives/testing/fault_suite.h"
#include "collectives/testing/run_emulated.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

EngineUnderFault Threads() {
  EngineUnderFault engine;
  engine.name = "Threads";
  engine.run = [](int64_t ranks, const RankBody& body,
                  const CommunicatorOptions& options) {
    std::vector<RankOutcome> outcomes;
    for (const absl::Status& status :
         RunStagedRanks(ranks, /*seed=*/1, body, options)) {
      outcomes.push_back({status, 0, absl::ZeroDuration()});
    }
    return outcomes;
  };
  return engine;
}

EngineUnderFault Processes() {
  EngineUnderFault engine;
  engine.name = "Processes";
  engine.ranks_are_processes = true;
  engine.run = [](int64_t ranks, const RankBody& body,
                  const CommunicatorOptions& options) {
    return RunSharedMemory(
        ranks, [&](Communicator& host) { return RunStaged(host, 2, body); },
        options);
  };
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Emulated, FaultTest,
                         ::testing::Values(Threads(), Processes()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
