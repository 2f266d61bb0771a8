// Emulated devices give the bits of the processor, whatever the order of their
// work, for every pair of options; no wait is missing, and the host waits once
// a step.
#include <cstdint>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/train/parity/testing/covering_array.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"

namespace tessera::train {
namespace {

constexpr int64_t kSteps = 3;
// The number of tests among which the runs are distributed. They run in
// parallel.
constexpr size_t kShards = 12;

class EmulatedParityTest : public ::testing::TestWithParam<size_t> {};

TEST_P(EmulatedParityTest, MatchesCpuBitForBit) {
  const std::vector<CoveringRow> rows = CoveringArray(ParityProblem());
  for (size_t row = GetParam(); row < rows.size(); row += kShards) {
    ParityCase run = CaseOf(rows[row]);
    run.steps = kSteps;
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
    // Two orders.
    for (int64_t order = 0; order < 2; ++order) {
      run.device_seed = 1 + order + 2 * static_cast<int64_t>(row);
      // If the host executes the optimizer, some steps are speculative.
      run.speculative_bytes = order == 0 ? 0 : 1 << 30;
      SCOPED_TRACE(run.device_seed);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t step = 0; step < actual.size(); ++step) {
        EXPECT_EQ(actual[step].loss, expected[step].loss);
        EXPECT_EQ(actual[step].gradient_norm, expected[step].gradient_norm);
        EXPECT_EQ(actual[step].skipped, expected[step].skipped);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, EmulatedParityTest,
                         ::testing::Range<size_t>(0, kShards));

}  // namespace
}  // namespace tessera::train
