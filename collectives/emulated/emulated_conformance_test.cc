#include "absl/strings/str_cat.h"
#include "collectives/testing/conformance_suite.h"
#include "collectives/testing/run_emulated.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

EngineUnderTest WithSeed(uint64_t seed) {
  EngineUnderTest engine;
  engine.name = absl::StrCat("Seed", seed);
  engine.run = [seed](int64_t ranks, const RankBody& body,
                      const CommunicatorOptions& options) {
    return RunStagedRanks(ranks, seed, body, options);
  };
  engine.most_ranks = 4;
  engine.largest_count = 5003;
  engine.random_operations = 200;
  engine.keep_one_case_in = 20;
  return engine;
}

INSTANTIATE_TEST_SUITE_P(Emulated, ConformanceTest,
                         ::testing::Values(WithSeed(1), WithSeed(2),
                                           WithSeed(3)),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
