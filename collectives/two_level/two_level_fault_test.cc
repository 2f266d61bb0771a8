// The fault suite on processes of one machine that act as two hosts.
#include "absl/strings/str_cat.h"
#include "collectives/gloo/gloo_engine.h"
#include "collectives/testing/fault_suite.h"
#include "collectives/testing/run_ranks.h"
#include "collectives/two_level/two_level_engine.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

EngineUnderFault TwoHosts() {
  EngineUnderFault engine;
  engine.name = "TwoHosts";
  engine.run = [](int64_t ranks, const RankBody& body,
                  const CommunicatorOptions& options) {
    const auto create = [ranks](Store& store) {
      TwoLevelOptions two_level;
      two_level.host =
          absl::StrCat("host", store.rank().value() / ((ranks + 1) / 2));
      return CreateTwoLevelEngine(store, two_level,
                                  [&] { return CreateGlooEngine(store); });
    };
    return RunOverStore(ranks, create, body, options);
  };
  engine.ranks_are_processes = true;
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Processes, FaultTest, ::testing::Values(TwoHosts()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
