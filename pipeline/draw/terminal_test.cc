#include "pipeline/draw/terminal.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

Exhibit ExhibitOf(std::string_view name, const PipelineShape& shape,
                  const StageCosts& costs = {}) {
  const Schedule schedule = *Generate(name, shape);
  return {std::string(name),
          *Simulate(schedule, Costs::Uniform(schedule.map.stages(), costs)), 0};
}

// The drawings of the ranks, between the bars.
std::vector<std::string> RowsOf(const std::string& drawing) {
  std::vector<std::string> rows;
  for (std::string_view line : absl::StrSplit(drawing, '\n')) {
    if (!absl::StartsWith(line, "rank ")) continue;
    const size_t begin = line.find('|') + 1;
    rows.emplace_back(line.substr(begin, line.rfind('|') - begin));
  }
  return rows;
}

TEST(TerminalTest, DrawsOneFOneB) {
  EXPECT_EQ(*DrawTerminal({{ExhibitOf("1f1b", {3, 1, 4})}}, kMilliseconds),
            "1f1b\n"
            "makespan 18 ms, bubble 33.33 %, peak 3 micro-batches, 3 B\n"
            "rank 0 |F0F1F2........B0--F3B1--..B2--..B3--|  33.3 %\n"
            "rank 1 |..F0F1....B0--F2B1--F3B2--..B3--....|  33.3 %\n"
            "rank 2 |....F0B0--F1B1--F2B2--F3B3--........|  33.3 %\n"
            "       |0        |5        |10       |15 ms\n");
}

TEST(TerminalTest, FurtherStagesAreInLowerCase) {
  const std::vector<std::string> rows =
      RowsOf(*DrawTerminal({{ExhibitOf("zb_v", {2, 2, 3})}}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(absl::StartsWith(rows[0], "F0F1F2f0i0"));
  EXPECT_TRUE(absl::StrContains(rows[0], "w2"));
}

TEST(TerminalTest, ShowsEveryComputationIfWideEnough) {
  for (const Generator& generator : Generators()) {
    const Exhibit exhibit = ExhibitOf(
        generator.name, {4, generator.chunks > 0 ? generator.chunks : 2, 12});
    const std::vector<std::string> rows =
        RowsOf(*DrawTerminal({{exhibit}}, {}, {.width = 4000}));
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      const auto& line = exhibit.timeline.ranks[rank];
      int32_t first = 1 << 20;
      for (const TimedAction& timed : line.computations) {
        first = std::min(first, timed.action.stage);
      }
      for (const TimedAction& timed : line.computations) {
        std::string name = absl::StrCat(ActionKindName(timed.action.kind),
                                        timed.action.microbatch);
        if (timed.action.stage > first) name[0] = name[0] - 'A' + 'a';
        const auto at = static_cast<size_t>(timed.begin * 3 + 0.5);
        EXPECT_EQ(rows[rank].substr(at, name.size()), name)
            << generator.name << " " << timed.action;
      }
    }
  }
}

TEST(TerminalTest, FitsItsWidthAndKeepsShares) {
  for (const int64_t microbatches : {3, 40, 400}) {
    const Exhibit exhibit =
        ExhibitOf("zb_h1", {4, 1, microbatches},
                  {.forward = 2, .backward_input = 2, .backward_weight = 1});
    for (const int64_t width : {40, 79, 200}) {
      const std::string drawing =
          *DrawTerminal({{exhibit}}, {}, {.width = width});
      for (const std::string& row : RowsOf(drawing)) {
        EXPECT_LE(row.size() + 18, static_cast<size_t>(width) + 1);
        EXPECT_EQ(row.size(), RowsOf(drawing)[0].size());
      }
      // The number of idle characters is proportional to idle time.
      const std::string row = RowsOf(drawing)[3];
      const auto dots =
          static_cast<double>(std::count(row.begin(), row.end(), '.'));
      const double idle =
          1 - exhibit.timeline.ranks[3].busy / exhibit.timeline.makespan;
      EXPECT_NEAR(dots / static_cast<double>(row.size()), idle, 0.12);
    }
  }
}

TEST(TerminalTest, ColoursDoNotChangeText) {
  const Exhibit exhibit = ExhibitOf("dualpipe", {4, 1, 8});
  const std::string plain = *DrawTerminal({{exhibit}}, {}, {.width = 120});
  const std::string coloured =
      *DrawTerminal({{exhibit}}, {}, {.width = 120, .colour = true});
  EXPECT_FALSE(absl::StrContains(plain, "\x1b"));
  std::string stripped;
  for (size_t i = 0; i < coloured.size(); ++i) {
    if (coloured[i] == '\x1b') {
      i = coloured.find('m', i);
    } else {
      stripped += coloured[i];
    }
  }
  std::string filled = plain;
  std::replace(filled.begin(), filled.end(), '-', ' ');
  std::replace(stripped.begin(), stripped.end(), '-', ' ');
  EXPECT_EQ(stripped, filled);
  EXPECT_TRUE(absl::StrContains(coloured, "\x1b[97;44mF0"));
}

TEST(TerminalTest, ExhibitsShareAScale) {
  const std::string drawing = *DrawTerminal(
      {{ExhibitOf("gpipe", {2, 1, 4}), ExhibitOf("zb_h2", {2, 1, 4})}});
  const std::vector<std::string> rows = RowsOf(drawing);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].substr(0, 4), rows[2].substr(0, 4));
  EXPECT_EQ(rows[0].size(), rows[2].size());
}

TEST(TerminalTest, ShowsOptimizerAndOverlappingPairs) {
  Exhibit exhibit;
  RankTimeline rank;
  rank.computations = {{{ActionKind::kForward, 0, 8, true}, 0, 4},
                       {{ActionKind::kBackward, 0, 3, false}, 0, 4}};
  rank.optimizer = {4, 6};
  exhibit.timeline.ranks = {rank};
  EXPECT_EQ(RowsOf(*DrawTerminal({{exhibit}}))[0], "FBO");
  exhibit.timeline.ranks[0].computations[0].action.with_next = false;
  exhibit.timeline.ranks[0].computations.pop_back();
  EXPECT_EQ(RowsOf(*DrawTerminal({{exhibit}}))[0], "F8O");
}

TEST(TerminalTest, RejectsBadWidthsAndWrongTimelines) {
  const Exhibit exhibit = ExhibitOf("1f1b", {2, 1, 2});
  for (const int64_t width : {-1, 0, 39, 4097}) {
    EXPECT_THAT(DrawTerminal({{exhibit}}, {}, {.width = width}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("a picture of ", width,
                                                " columns; from 40 to 4096"))));
  }
  EXPECT_THAT(DrawTerminal({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("no timeline")));
}

TEST(TerminalTest, DrawsEmptyTimelines) {
  EXPECT_THAT(DrawTerminal({{Exhibit{}}}), IsOk());
  Exhibit exhibit;
  exhibit.title = "\x1b[31m\n";
  exhibit.timeline.ranks.resize(1);
  const std::string drawing = *DrawTerminal({{exhibit}});
  EXPECT_FALSE(absl::StrContains(drawing, "\x1b"));
}

}  // namespace
}  // namespace tessera::pipeline
