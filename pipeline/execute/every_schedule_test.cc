// A training step with every generator's schedule gives the results of a plain
// loop; ranks are threads.
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "pipeline/execute/testing/layer_stack.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/testing/schedules.h"

namespace tessera::pipeline {
namespace {

using ::testing::Each;

class EveryScheduleTest : public ::testing::TestWithParam<int64_t> {};

template <typename T>
std::vector<absl::Status> CheckAll(int64_t ranks, int64_t chunks,
                                   const ExecutorOptions& options) {
  return collectives::RunRanks(ranks, [&](collectives::Communicator& c) {
    return ForEachSchedule(ranks, chunks, [&](const Schedule& schedule) {
      return CheckStack<T>(c, schedule, options);
    });
  });
}

TEST_P(EveryScheduleTest, MatchesGradientsOfOneRankInDouble) {
  EXPECT_THAT(CheckAll<double>(GetParam(), 3, {}), Each(IsOk()));
}

TEST_P(EveryScheduleTest, MatchesGradientsOfOneRankInFloat) {
  EXPECT_THAT(CheckAll<float>(GetParam(), 2, {}), Each(IsOk()));
}

TEST_P(EveryScheduleTest, MatchesGradientsWithStartedMessages) {
  EXPECT_THAT(CheckAll<double>(GetParam(), 2, {.start_from_bytes = 0}),
              Each(IsOk()));
}

TEST_P(EveryScheduleTest, MatchesGradientsWithFusedMessages) {
  const int64_t ranks = GetParam();
  // Sends in place, sends asynchronously, and mixes both by size.
  for (const int64_t start_from : {1 << 20, 0, 70}) {
    EXPECT_THAT(
        collectives::RunRanks(
            ranks,
            [&](collectives::Communicator& c) {
              return ForEachSchedule(
                  ranks, 2, [&](const Schedule& schedule) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(const Schedule lowered,
                                             AddCommunication(schedule));
                    return CheckStack<double>(c, FuseMessages(lowered),
                                              {.start_from_bytes = start_from});
                  });
            }),
        Each(IsOk()));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryScheduleTest,
                         ::testing::Values(1, 2, 3, 4, 8));

}  // namespace
}  // namespace tessera::pipeline
