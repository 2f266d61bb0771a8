#include "collectives/in_process/in_process.h"
#include "collectives/testing/fault_suite.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

EngineUnderFault InProcess() {
  EngineUnderFault engine;
  engine.name = "InProcess";
  engine.has_tags = true;
  engine.run = [](int64_t ranks, const RankBody& body,
                  const CommunicatorOptions& options) {
    std::vector<RankOutcome> outcomes;
    for (const absl::Status& status : RunRanks(ranks, body, options)) {
      outcomes.push_back({status, 0, absl::ZeroDuration()});
    }
    return outcomes;
  };
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Threads, FaultTest, ::testing::Values(InProcess()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
