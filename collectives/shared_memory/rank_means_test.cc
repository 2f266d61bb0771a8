#include "collectives/shared_memory/rank_means.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

TEST(RankMeansTest, SurvivesATextAndRefusesOthers) {
  for (const RankMeans& means :
       {RankMeans{1, {}, false}, RankMeans{2, {0, 1}, true},
        RankMeans{3, {7, 64, 1023}, true}}) {
    EXPECT_THAT(RankMeans::Parse(means.ToString()), IsOkAndHolds(means));
  }
  for (const char* text : {"", "2 1", "2 1 0,1 ", "0 1 0", "2 x 0", "2 1 0,b",
                           "2 1 0,99999999999", "-1 0 0"}) {
    EXPECT_THAT(RankMeans::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

TEST(RankMeansTest, ProcessorsTogetherAreThoseThatAnybodyHas) {
  const RankMeans both{2, {0, 1}, true};
  const std::vector<RankMeans> shared = {both, both, both};
  EXPECT_EQ(ProcessorsTogether(shared), 2);
  const std::vector<RankMeans> bound = {
      {1, {0}, true}, {1, {1}, true}, {1, {5}, true}};
  EXPECT_EQ(ProcessorsTogether(bound), 3);
  const std::vector<RankMeans> quota = {{8, {0, 1, 2, 3, 4, 5, 6, 7}, true},
                                        {2, {0, 1, 2, 3, 4, 5, 6, 7}, true}};
  EXPECT_EQ(ProcessorsTogether(quota), 2);
  const std::vector<RankMeans> unknown = {{1, {}, false}};
  EXPECT_EQ(ProcessorsTogether(unknown), 1);
}

}  // namespace
}  // namespace tessera::collectives
