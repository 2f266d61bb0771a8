#include "topology/config/options/stage_placement.h"

#include <limits>
#include <set>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

std::vector<int64_t> Stages(int64_t rank, int64_t pp, int64_t chunks,
                            StagePlacement placement) {
  std::vector<int64_t> stages;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    stages.push_back(*StageOfChunk(rank, chunk, pp, chunks, placement));
  }
  return stages;
}

TEST(StagePlacementTest, MatchesTheFigures) {
  EXPECT_THAT(Stages(1, 4, 2, StagePlacement::kLinear), ElementsAre(2, 3));
  EXPECT_THAT(Stages(1, 4, 2, StagePlacement::kLoop), ElementsAre(1, 5));
  EXPECT_THAT(Stages(1, 4, 2, StagePlacement::kVee), ElementsAre(1, 6));
  EXPECT_THAT(Stages(0, 4, 3, StagePlacement::kVee), ElementsAre(0, 7, 8));
}

TEST(StagePlacementTest, EveryStageHasOneRankAndChunk) {
  for (const auto& [name, placement] : EnumNames<StagePlacement>::kTable) {
    for (int64_t pp = 1; pp <= 6; ++pp) {
      for (int64_t chunks = 1; chunks <= 5; ++chunks) {
        std::set<int64_t> seen;
        for (int64_t rank = 0; rank < pp; ++rank) {
          for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            TESSERA_ASSERT_OK_AND_ASSIGN(
                const int64_t stage,
                StageOfChunk(rank, chunk, pp, chunks, placement));
            EXPECT_TRUE(seen.insert(stage).second) << name;
            EXPECT_THAT(RankOfStage(stage, pp, chunks, placement),
                        IsOkAndHolds(rank));
            EXPECT_THAT(ChunkOfStage(stage, pp, chunks, placement),
                        IsOkAndHolds(chunk));
          }
        }
        EXPECT_EQ(*seen.begin(), 0);
        EXPECT_EQ(*seen.rbegin(), pp * chunks - 1);
      }
    }
  }
}

TEST(StagePlacementTest, RefusesWhatIsNotThere) {
  constexpr auto kLoop = StagePlacement::kLoop;
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(RankOfStage(8, 4, 2, kLoop),
              refused("no stage 8; choose from 0 to 7"));
  EXPECT_THAT(RankOfStage(-1, 1, 1, kLoop),
              refused("no stage -1; the only one is 0"));
  EXPECT_THAT(ChunkOfStage(8, 4, 2, kLoop), refused("no stage 8"));
  EXPECT_THAT(StageOfChunk(4, 0, 4, 2, kLoop), refused("no pipeline rank 4"));
  EXPECT_THAT(StageOfChunk(0, 2, 4, 2, kLoop), refused("no chunk 2"));
  EXPECT_THAT(StageOfChunk(0, 0, 0, 2, kLoop), refused("0 ranks with 2"));
  EXPECT_THAT(StageCount(3, -1), refused("3 ranks with -1 chunks"));
  EXPECT_THAT(StageCount(kHuge, 2), refused("at most 2^63-1 stages"));
  EXPECT_THAT(StageCount(kHuge, 1), IsOkAndHolds(kHuge));
  const auto unknown = static_cast<StagePlacement>(9);
  EXPECT_THAT(RankOfStage(0, 1, 1, unknown), refused("unknown"));
  EXPECT_THAT(ChunkOfStage(0, 1, 1, unknown), refused("unknown"));
  EXPECT_THAT(StageOfChunk(0, 0, 1, 1, unknown), refused("unknown"));
}

}  // namespace
}  // namespace tessera::topology
