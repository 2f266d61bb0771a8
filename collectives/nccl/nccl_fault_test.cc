#include <vector>

#include "absl/time/time.h"
#include "collectives/nccl/testing/run_stand_in.h"
#include "collectives/testing/fault_suite.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

EngineUnderFault Threads() {
  EngineUnderFault engine;
  engine.name = "Threads";
  engine.has_algorithms = false;
  engine.run = [](int64_t ranks, const RankBody& body,
                  const CommunicatorOptions& options) {
    std::vector<RankOutcome> outcomes;
    for (const absl::Status& status :
         RunStagedStandIn(ranks, /*seed=*/1, body, options)) {
      outcomes.push_back({status, 0, absl::ZeroDuration()});
    }
    return outcomes;
  };
  return engine;
}

INSTANTIATE_TEST_SUITE_P(NcclStandIn, FaultTest, ::testing::Values(Threads()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
