#include "tools/train/launch/verify_losses.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

RunResult Losses(std::vector<double> losses, int64_t first = 0) {
  RunResult result;
  for (size_t i = 0; i < losses.size(); ++i) {
    StepResult step;
    step.record.step = first + static_cast<int64_t>(i);
    step.record.loss = losses[i];
    result.steps.push_back(step);
  }
  return result;
}

TEST(OneRankSettingsTest, KeepWhatDecidesTheLosses) {
  const Settings settings = {.model = "llama-10m",
                             .batch = 12,
                             .seed = 5,
                             .parallel = {.mesh = {.dp = 2, .cp = 2},
                                          .dtype = DType::kBF16,
                                          .memory_limit = ByteSize(1 << 30)},
                             .recompute = "full",
                             .offload = "all",
                             .run_dir = "/run",
                             .resume = "from",
                             .metrics = "m",
                             .max_restarts = 2};
  const Settings alone = OneRankSettings(settings);
  Settings expected = settings;
  expected.parallel.mesh = {};
  expected.parallel.memory_limit = {};
  expected.engine = "in_process";
  expected.parallel.strategy = topology::CommunicationStrategy::kAllReduce;
  expected.recompute = "none";
  expected.zero = 0;
  expected.offload = "none";
  expected.run_dir = "";
  expected.metrics = "";
  expected.max_restarts = 0;
  expected.quiet = true;
  EXPECT_EQ(alone, expected);
}

TEST(CompareLossesTest, FindsTheLargestOfTheStepsInBoth) {
  const LossDifference difference =
      CompareLosses(Losses({2, 4.4, 5, 9}, 10), Losses({7, 2, 4, 5}, 9));
  EXPECT_EQ(difference.steps, 3);
  EXPECT_NEAR(difference.largest, 0.1, 1e-12);
  EXPECT_EQ(difference.at_step, 11);
  EXPECT_EQ(CompareLosses(Losses({1, 2}), Losses({1, 2})).largest, 0);
}

TEST(CompareLossesTest, ALossThatIsNoNumberIsTheLargestDifference) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& [a, b] : {std::pair(nan, 2.0), std::pair(2.0, nan)}) {
    const LossDifference difference =
        CompareLosses(Losses({1, a, 50}), Losses({1, b, 2}));
    EXPECT_TRUE(std::isnan(difference.largest));
    EXPECT_EQ(difference.at_step, 1);
    EXPECT_THAT(CheckDifference(difference, {}),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step 1")));
  }
}

TEST(CheckDifferenceTest, AllowsWhatTheTypeAllows) {
  const Settings fp32;
  const Settings bf16 = {.parallel = {.dtype = DType::kBF16}};
  TESSERA_EXPECT_OK(CheckDifference({3, 9e-6, 1}, fp32));
  EXPECT_THAT(CheckDifference({3, 1.1e-5, 1}, fp32),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("1.1e-05")));
  TESSERA_EXPECT_OK(CheckDifference({3, 1.9e-2, 1}, bf16));
  EXPECT_FALSE(CheckDifference({3, 2.1e-2, 1}, bf16).ok());
  EXPECT_FALSE(CheckDifference({0, 0, 0}, fp32).ok());
}

}  // namespace
}  // namespace tessera::train
