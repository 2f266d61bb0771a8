// The fault suite on processes of one machine; each two of them act as a host.
#include <string>

#include "absl/strings/str_cat.h"
#include "collectives/gloo/gloo_engine.h"
#include "collectives/testing/fault_suite.h"
#include "collectives/testing/run_ranks.h"
#include "collectives/two_level/two_level_engine.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

EngineUnderFault Pairs(const std::string& name, bool encrypt) {
  EngineUnderFault engine;
  engine.name = name;
  engine.run = [encrypt](int64_t ranks, const RankBody& body,
                         const CommunicatorOptions& options) {
    const auto create = [encrypt](Store& store) {
      TwoLevelOptions two_level;
      two_level.host = absl::StrCat("host", store.rank().value() / 2);
      return CreateTwoLevelEngine(store, two_level, [&] {
        return CreateGlooEngine(store, {.encrypt = encrypt});
      });
    };
    return RunOverStore(ranks, create, body, options);
  };
  engine.ranks_are_processes = true;
  engine.says_dead = false;  // Between hosts.
  engine.has_tags = true;
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Processes, FaultTest,
                         ::testing::Values(Pairs("Pairs", false),
                                           Pairs("Encrypted", true)),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
