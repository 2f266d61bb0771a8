#include "tools/train/step/run_progress.h"

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(RunProgressTest, KeepsTheNewestLosses) {
  RunProgress progress;
  for (const double loss : {4.0, 3.0, kNan, 2.0}) progress.AddStep(loss, 3);
  EXPECT_EQ(progress.steps, 4);
  EXPECT_THAT(progress.losses, ElementsAre(3, kInfinity, 2));
  progress.AddStep(1, 0);
  EXPECT_THAT(progress.losses, ElementsAre());
}

TEST(RunProgressTest, MetadataRestoresItExactly) {
  for (const RunProgress& progress :
       std::vector<RunProgress>{{},
                                {.steps = 7},
                                {.steps = 20,
                                .skipped_samples = int64_t{1} << 50,
                                .rollbacks = 2,
                                .losses = {1.0 / 3, kInfinity, 1e-300},
                                .learning_rate = 0.1}}) {
    std::map<std::string, std::string> metadata;
    AddTo(progress, metadata);
    EXPECT_THAT(ProgressFrom(metadata), IsOkAndHolds(progress));
  }
}

TEST(RunProgressTest, MatchesOldMetadataWithoutRollbacks) {
  std::map<std::string, std::string> metadata;
  AddTo({.steps = 7}, metadata);
  EXPECT_EQ(metadata, (std::map<std::string, std::string>{{"steps", "7"}}));
}

TEST(RunProgressTest, RejectsInvalidMetadataAndNamesKey) {
  EXPECT_THAT(ProgressFrom({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("no number of steps")));
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{
           {"skipped_samples", "-1"},
           {"rollbacks", "two"},
           {"losses", "1.5  2"},
           {"losses", "nan"},
           {"learning_rate", "fast"},
           {"learning_rate", "inf"},
           {"losses", ""},
           {"steps", "9223372036854775807"}}) {
    std::map<std::string, std::string> metadata = {{"steps", "3"}};
    metadata[key] = value;
    EXPECT_THAT(ProgressFrom(metadata),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)))
        << value;
  }
}

TEST(FindSpikeTest, ComparesWithTheMedian) {
  const std::vector<double> losses = {2, 9, 1, 3, 2};
  EXPECT_FALSE(FindSpike(losses, 3, 1.5));
  const auto spike = FindSpike(losses, 3.1, 1.5);
  ASSERT_TRUE(spike);
  EXPECT_EQ(spike->usual, 2);
  EXPECT_EQ(spike->rising, 0u);
  EXPECT_EQ(FindSpike({{1.0, 2.0}}, 9, 1.5)->usual, 1.5);
}

TEST(FindSpikeTest, FindsNoneWithoutEarlierLosses) {
  EXPECT_FALSE(FindSpike({}, 100, 1.5));
  EXPECT_FALSE(FindSpike({}, kNan, 1.5));
}

TEST(FindSpikeTest, NonFiniteLossesAreSpikes) {
  for (const double loss : {kNan, kInfinity, -kInfinity}) {
    EXPECT_TRUE(FindSpike({{2.0, 2.0}}, loss, 1.5));
  }
}

TEST(FindSpikeTest, StartsAtFirstLossRisenByHalf) {
  EXPECT_EQ(FindSpike({{2.0, 2.0, 2.0, 2.0, 2.6, 2.9}}, 4, 1.5)->rising, 2u);
  EXPECT_EQ(FindSpike({{2.0, 2.9, 2.0, 2.0, 2.0, 2.9}}, 4, 1.5)->rising, 1u);
  EXPECT_EQ(FindSpike({{2.0, 2.0, 2.0, kInfinity}}, 4, 1.5)->rising, 1u);
}

}  // namespace
}  // namespace tessera::train
