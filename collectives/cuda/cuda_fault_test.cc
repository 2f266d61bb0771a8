#include "collectives/testing/fault_suite.h"
#include "collectives/testing/run_cuda.h"
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
         RunStagedCuda(ranks, /*seed=*/1, body, options)) {
      outcomes.push_back({status, 0, absl::ZeroDuration()});
    }
    return outcomes;
  };
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Cuda, FaultTest, ::testing::Values(Threads()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
