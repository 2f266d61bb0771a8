#include "tools/train/report/straggler.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Adds `steps` steps of four ranks in one stage, of which rank 2 computes
// `factor` times as long; returns the last result.
std::vector<Straggler> AfterSteps(StragglerWatch& watch, int steps,
                                  double factor) {
  std::vector<Straggler> found;
  for (int i = 0; i < steps; ++i) {
    std::vector<SectionSeconds> step(4, {1.0, 0.5, 0.01, 0});
    step[2][0] *= factor;
    step[2][1] -= 0.5 * (factor - 1);
    found = watch.Add(std::move(step));
  }
  return found;
}

TEST(StragglerTest, RatiosAreToTheMedianOfPeers) {
  EXPECT_THAT(RatiosToMedian(std::vector<double>{2, 4, 3, 30, 0, 0},
                             std::vector<int64_t>{0, 0, 0, 1, 2, 2}),
              ElementsAre(2.0 / 3, 4.0 / 3, 1, 1, 1, 1));
}

TEST(StragglerTest, FindsSlowRankAfterSeveralSteps) {
  StragglerWatch watch({0, 0, 0, 0});
  EXPECT_THAT(AfterSteps(watch, StragglerWatch::kSteps - 1, 1.5), IsEmpty());
  const std::vector<Straggler> found = AfterSteps(watch, 1, 1.5);
  ASSERT_THAT(found, SizeIs(3));  // Nothing is offloaded.
  EXPECT_EQ(found[0].section, Section::kCompute);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_DOUBLE_EQ(found[0].ratio, 1.5);
  EXPECT_TRUE(found[0].is_significant);
  EXPECT_TRUE(found[0].is_new);
  // The others wait twice as long as the slow rank, which is its fault.
  EXPECT_FALSE(found[1].is_significant);
  EXPECT_FALSE(found[2].is_significant);
  EXPECT_FALSE(AfterSteps(watch, 1, 1.5)[0].is_new);
}

TEST(StragglerTest, SmallDifferencesAreNotSignificant) {
  StragglerWatch watch({0, 0, 0, 0});
  const std::vector<Straggler> found = AfterSteps(watch, 20, 1.1);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_FALSE(found[0].is_significant);
}

TEST(StragglerTest, FewSlowStepsAreNotSignificant) {
  StragglerWatch watch({0, 0, 0, 0});
  AfterSteps(watch, 12, 1);
  const std::vector<Straggler> found = AfterSteps(watch, 4, 5);
  EXPECT_GT(found[0].ratio, kStragglerRatio);
  EXPECT_FALSE(found[0].is_significant);
}

// Twice the time in a section that takes 1 % of the step.
TEST(StragglerTest, ShortSectionsAreNotSignificant) {
  StragglerWatch watch({0, 0});
  std::vector<Straggler> found;
  for (size_t i = 0; i < StragglerWatch::kSteps; ++i) {
    found = watch.Add({{1.0, 0, 0.01, 0}, {1.0, 0, 0.02, 0}});
  }
  EXPECT_EQ(found[1].section, Section::kData);
  EXPECT_DOUBLE_EQ(found[1].ratio, 2);
  EXPECT_FALSE(found[1].is_significant);
}

TEST(StragglerTest, StagesAreNotCompared) {
  StragglerWatch watch({0, 0, 1, 1});
  EXPECT_TRUE(AfterSteps(watch, 16, 1.5)[0].is_significant);
  StragglerWatch alone({0, 0, 1, 0});
  EXPECT_FALSE(AfterSteps(alone, 16, 1.5)[0].is_significant);
}

TEST(StragglerTest, OneRankHasNoPeers) {
  StragglerWatch watch({0});
  for (int i = 0; i < 20; ++i)
    EXPECT_THAT(watch.Add({{1, 1, 1, 1}}), IsEmpty());
}

}  // namespace
}  // namespace tessera::train
