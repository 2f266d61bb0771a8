#include "base/status_matchers.h"
#include "collectives/shared_memory/shared_memory.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

TEST(RankCapabilitiesTest, SurvivesATextAndRefusesOthers) {
  for (const RankCapabilities& capabilities :
       {RankCapabilities{1, {}, false}, RankCapabilities{2, {0, 1}, true},
        RankCapabilities{3, {7, 64, 1023}, true}}) {
    EXPECT_THAT(RankCapabilities::Parse(capabilities.ToString()),
                IsOkAndHolds(capabilities));
  }
  for (const char* text : {"", "2 1", "2 1 0,1 ", "0 1 0", "2 x 0", "2 1 0,b",
                           "2 1 0,99999999999", "-1 0 0"}) {
    EXPECT_THAT(RankCapabilities::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

TEST(RankCapabilitiesTest, ProcessorsTogetherAreThoseThatAnybodyHas) {
  const RankCapabilities both{2, {0, 1}, true};
  const std::vector<RankCapabilities> shared = {both, both, both};
  EXPECT_EQ(ProcessorsTogether(shared), 2);
  const std::vector<RankCapabilities> bound = {
      {1, {0}, true}, {1, {1}, true}, {1, {5}, true}};
  EXPECT_EQ(ProcessorsTogether(bound), 3);
  const std::vector<RankCapabilities> quota = {
      {8, {0, 1, 2, 3, 4, 5, 6, 7}, true}, {2, {0, 1, 2, 3, 4, 5, 6, 7}, true}};
  EXPECT_EQ(ProcessorsTogether(quota), 2);
  const std::vector<RankCapabilities> unknown = {{1, {}, false}};
  EXPECT_EQ(ProcessorsTogether(unknown), 1);
}

}  // namespace
}  // namespace tessera::collectives
