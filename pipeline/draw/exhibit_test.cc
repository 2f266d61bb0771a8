#include "pipeline/draw/exhibit.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Exhibit Small() {
  Exhibit exhibit;
  exhibit.title = "small";
  RankTimeline rank;
  rank.computations = {{{ActionKind::kForward, 0, 0}, 0, 2},
                       {{ActionKind::kBackward, 0, 0}, 4, 7}};
  rank.busy = 5;
  rank.peak_activations = 1;
  exhibit.timeline.ranks = {rank};
  exhibit.timeline.makespan = 7;
  exhibit.timeline.longest_stage = 7;
  return exhibit;
}

TEST(ExhibitTest, RejectsInvalidTimelinesAndNamesAction) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  using Change = std::function<void(RankTimeline&)>;
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](auto& rank) { rank.computations[0].begin = -1; }, "0F0 is from -1"},
      {[](auto& rank) { rank.computations[1].end = 3; }, "0B0 is from 4 to 3"},
      {[](auto& rank) { rank.computations[1].end = kInfinity; }, "0B0 is from"},
      {[](auto& rank) { rank.computations[0].begin = kNan; }, "0F0 is from"},
      {[](auto& rank) {
         std::swap(rank.computations[0], rank.computations[1]);
       },
       "0F0 begins at 0, before the action before it, at 4"},
      {[](auto& rank) {
         rank.communications = {{{ActionKind::kSendForward, 0, 0}, 3, 2}};
       },
       "0SEND_F0 is from 3 to 2"},
      {[](auto& rank) {
         rank.memory = {{2, 1}, {1, 0}};
       },
       "its memory changes at 1, after 2"},
      {[](auto& rank) {
         rank.optimizer = {8, 7};
       },
       "the optimizer from 8 to 7"},
  };
  for (const auto& [change, message] : cases) {
    std::vector<Exhibit> exhibits = {Small(), Small()};
    exhibits[1].title = "bad\n";
    change(exhibits[1].timeline.ranks[0]);
    EXPECT_THAT(
        CheckExhibits(exhibits),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("\"bad\\n\": rank 0: "), HasSubstr(message))));
  }
  EXPECT_THAT(CheckExhibits({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("no timeline")));
  std::vector<Exhibit> many = {Small()};
  many[0].timeline.ranks.resize(kMostDrawnRanks + 1);
  EXPECT_THAT(CheckExhibits(many),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("4097 ranks; a picture has at most 4096")));
  std::vector<Exhibit> late = {Small()};
  late[0].timeline.synchronisation = {1, kNan};
  EXPECT_THAT(CheckExhibits(late),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the synchronisation from 1 to nan")));
}

TEST(ExhibitTest, AcceptsEmptyAndZeroLengthTimelines) {
  EXPECT_THAT(CheckExhibits(std::vector<Exhibit>{{}, Small()}), IsOk());
  Exhibit instant = Small();
  instant.timeline.ranks[0].computations[0].end = 0;
  EXPECT_THAT(CheckExhibits({&instant, 1}), IsOk());
}

TEST(ExhibitTest, ExtentIsLatestEnd) {
  Exhibit exhibit = Small();
  EXPECT_EQ(ExtentOf(exhibit.timeline), 7);
  RankTimeline& rank = exhibit.timeline.ranks[0];
  rank.communications = {{{ActionKind::kSendForward, 0, 0}, 2, 9},
                         {{ActionKind::kSendForward, 0, 1}, 3, 4}};
  EXPECT_EQ(ExtentOf(exhibit.timeline), 9);
  rank.optimizer = {9, 11};
  EXPECT_EQ(ExtentOf(exhibit.timeline), 11);
  const std::vector<Exhibit> both = {Small(), exhibit};
  EXPECT_EQ(ExtentOf(both), 11);
  EXPECT_EQ(ExtentOf(Timeline()), 0);
}

TEST(ExhibitTest, TheSummaryHasTimesBubbleAndPeaks) {
  Exhibit exhibit = Small();
  EXPECT_EQ(SummaryOf(exhibit, {}),
            "makespan 7 s, bubble 28.57 %, peak 1 micro-batch");
  exhibit.timeline.ranks[0].memory = {{0, 1609728}};
  exhibit.timeline.ranks[0].peak_bytes = 1609728;
  exhibit.timeline.ranks[0].peak_activations = 2;
  EXPECT_EQ(SummaryOf(exhibit, kMilliseconds),
            "makespan 7 ms, bubble 28.57 %, peak 2 micro-batches, 1.61 MB");
}

}  // namespace
}  // namespace tessera::pipeline
