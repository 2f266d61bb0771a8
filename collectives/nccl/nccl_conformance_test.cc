#include "absl/strings/str_cat.h"
#include "collectives/nccl/testing/run_stand_in.h"
#include "collectives/testing/conformance_suite.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

EngineUnderTest WithSeed(uint64_t seed) {
  EngineUnderTest engine;
  engine.name = absl::StrCat("Seed", seed);
  engine.run = [seed](int64_t ranks, const RankBody& body,
                      const CommunicatorOptions& options) {
    return RunStagedStandIn(ranks, seed, body, options);
  };
  engine.fewest_ranks = 2;
  engine.most_ranks = 4;
  engine.largest_count = 5003;
  engine.random_operations = 200;
  engine.keep_one_case_in = 20;
  engine.has_algorithms = false;
  return engine;
}

INSTANTIATE_TEST_SUITE_P(NcclStandIn, ConformanceTest,
                         ::testing::Values(WithSeed(1), WithSeed(2)),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace tessera::collectives
