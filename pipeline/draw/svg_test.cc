#include "pipeline/draw/svg.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/draw/testing/svg_checker.h"
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

std::vector<XmlElement> Drawn(const std::vector<Exhibit>& exhibits) {
  return *ReadXml(*DrawSvg(exhibits, kMilliseconds));
}

// The boxes of a rank's row, without the background.
std::vector<XmlElement> BoxesOfRank(const std::vector<XmlElement>& elements,
                                    size_t rank) {
  std::vector<XmlElement> boxes;
  for (const XmlElement& element : elements) {
    if (element.name == "rect" &&
        element.group == absl::StrCat("panel/rank ", rank)) {
      boxes.push_back(element);
    }
  }
  if (!boxes.empty()) boxes.erase(boxes.begin());
  return boxes;
}

XmlElement GroundOfRank(const std::vector<XmlElement>& elements, size_t rank) {
  for (const XmlElement& element : elements) {
    if (element.name == "rect" &&
        element.group == absl::StrCat("panel/rank ", rank)) {
      return element;
    }
  }
  return {};
}

TEST(SvgTest, DrawsBoxForEveryComputation) {
  for (const Generator& generator : Generators()) {
    for (const int64_t ranks : {2, 4, 6}) {
      const PipelineShape shape = {
          ranks, generator.chunks > 0 ? generator.chunks : 2, 13};
      const Exhibit exhibit = ExhibitOf(generator.name, shape,
                                        {.forward = 3,
                                         .backward_input = 4,
                                         .backward_weight = 2,
                                         .communication = 0});
      const std::vector<XmlElement> elements = Drawn({exhibit});
      const XmlElement ground = GroundOfRank(elements, 0);
      const double scale = ground.Number("width") / exhibit.timeline.makespan;
      for (size_t rank = 0; rank < exhibit.timeline.ranks.size(); ++rank) {
        std::map<std::string, XmlElement> boxes;
        for (const XmlElement& box : BoxesOfRank(elements, rank)) {
          if (box.text.empty()) continue;  // An outline.
          EXPECT_TRUE(
              boxes.emplace(box.text.substr(0, box.text.find(':')), box).second)
              << box.text;
        }
        const auto& computations = exhibit.timeline.ranks[rank].computations;
        EXPECT_EQ(boxes.size(), computations.size()) << generator.name;
        for (const TimedAction& timed : computations) {
          const auto box = boxes.find(timed.action.ToString());
          ASSERT_NE(box, boxes.end()) << timed.action << generator.name;
          EXPECT_NEAR(box->second.Number("x"),
                      ground.Number("x") + timed.begin * scale, 0.02);
          EXPECT_NEAR(box->second.Number("width"),
                      (timed.end - timed.begin) * scale, 0.02);
        }
      }
    }
  }
}

TEST(SvgTest, NumbersAreInTheirBoxesAndPairsHaveAnOutline) {
  const Exhibit exhibit = ExhibitOf("dualpipe", {8, 1, 20});
  const std::vector<XmlElement> elements = Drawn({exhibit});
  for (size_t rank = 0; rank < 8; ++rank) {
    std::vector<XmlElement> numbers;
    for (const XmlElement& element : elements) {
      if (element.name == "text" && element.Get("class") == "middle" &&
          element.group == absl::StrCat("panel/rank ", rank)) {
        numbers.push_back(element);
      }
    }
    const auto& computations = exhibit.timeline.ranks[rank].computations;
    ASSERT_EQ(numbers.size(), computations.size());
    size_t outlines = 0;
    size_t next = 0;
    for (const XmlElement& box : BoxesOfRank(elements, rank)) {
      if (box.text.empty()) {
        EXPECT_EQ(box.Get("fill"), "none");
        ++outlines;
        continue;
      }
      const XmlElement& number = numbers[next];
      EXPECT_EQ(number.text,
                absl::StrCat(computations[next].action.microbatch));
      EXPECT_NEAR(number.Number("x"), box.Number("x") + box.Number("width") / 2,
                  0.02);
      ++next;
    }
    const auto pairs = std::count_if(
        computations.begin(), computations.end(),
        [](const TimedAction& timed) { return timed.action.with_next; });
    EXPECT_GT(pairs, 0);
    EXPECT_EQ(outlines, static_cast<size_t>(pairs));
  }
}

TEST(SvgTest, OverlappingComputationsHaveHalfHeight) {
  Exhibit exhibit;
  RankTimeline rank;
  rank.computations = {{{ActionKind::kForward, 0, 8, true}, 0, 4},
                       {{ActionKind::kBackward, 1, 3, false}, 0.5, 5},
                       {{ActionKind::kForward, 0, 9, false}, 5, 6}};
  exhibit.timeline.ranks = {rank};
  exhibit.timeline.makespan = 6;
  const std::vector<XmlElement> elements = Drawn({exhibit});
  const XmlElement ground = GroundOfRank(elements, 0);
  const std::vector<XmlElement> boxes = BoxesOfRank(elements, 0);
  ASSERT_EQ(boxes.size(), 4u);
  const double height = ground.Number("height");
  EXPECT_EQ(boxes[0].Number("height"), height / 2);
  EXPECT_EQ(boxes[1].Number("height"), height / 2);
  EXPECT_EQ(boxes[1].Number("y"), boxes[0].Number("y") + height / 2);
  EXPECT_EQ(boxes[2].Number("height"), height);
}

TEST(SvgTest, ColoursShowKindsAndShadesShowStages) {
  const std::vector<XmlElement> elements =
      Drawn({ExhibitOf("zb_v", {4, 2, 8})});
  std::map<std::string, std::string> colour_of;  // By kind and stage.
  for (const XmlElement& box : BoxesOfRank(elements, 1)) {
    std::string what;
    for (const char c : box.text.substr(0, box.text.find(':'))) {
      what += c;
      if (c == 'F' || c == 'I' || c == 'W') break;
    }
    const auto known = colour_of.emplace(what, box.Get("fill")).first;
    EXPECT_EQ(known->second, box.Get("fill")) << box.text;
  }
  EXPECT_EQ(colour_of.size(), 6u);
  std::map<std::string, std::string> kinds;
  for (const auto& [what, colour] : colour_of) kinds[colour] = what;
  EXPECT_EQ(kinds.size(), 6u);
}

TEST(SvgTest, PanelsShareScaleAndHaveTitles) {
  const std::vector<Exhibit> exhibits = {ExhibitOf("gpipe", {4, 1, 8}),
                                         ExhibitOf("zb_h1", {4, 1, 8})};
  const std::vector<XmlElement> elements = Drawn(exhibits);
  std::map<std::string, size_t> texts;
  std::vector<XmlElement> forwards;
  for (const XmlElement& element : elements) {
    if (element.name == "text") ++texts[element.text];
    if (element.name == "rect" && absl::StartsWith(element.text, "0F0:")) {
      forwards.push_back(element);
    }
  }
  for (const Exhibit& exhibit : exhibits) {
    EXPECT_EQ(texts[exhibit.title], 1u);
    EXPECT_EQ(texts[SummaryOf(exhibit, kMilliseconds)], 1u);
  }
  EXPECT_EQ(texts["F forward"], 1u);
  EXPECT_EQ(texts["W backward, weights"], 1u);
  EXPECT_EQ(texts["send"], 0u);
  EXPECT_EQ(texts["time, ms"], 2u);
  ASSERT_EQ(forwards.size(), 2u);
  EXPECT_EQ(forwards[0].Number("x"), forwards[1].Number("x"));
  EXPECT_EQ(forwards[0].Number("width"), forwards[1].Number("width"));
  EXPECT_LT(forwards[0].Number("y"), forwards[1].Number("y"));
}

TEST(SvgTest, MemoryIsDrawnUnderItsLimit) {
  Exhibit exhibit = ExhibitOf("1f1b", {3, 1, 5},
                              {.forward_bytes = 1000,
                               .backward_input_bytes = -400,
                               .backward_weight_bytes = -600});
  exhibit.memory_limit = 4000;
  const std::vector<XmlElement> elements = Drawn({exhibit});
  size_t curves = 0;
  bool has_limit = false;
  for (const XmlElement& element : elements) {
    curves += element.name == "path" ? 1 : 0;
    has_limit |= element.text == "limit 4 kB";
  }
  EXPECT_EQ(curves, 3u);
  EXPECT_TRUE(has_limit);
}

TEST(SvgTest, CommunicationIsBelowItsRank) {
  const Exhibit exhibit = ExhibitOf("1f1b", {3, 1, 5}, {.communication = 0.5});
  const std::vector<XmlElement> elements = Drawn({exhibit});
  for (size_t rank = 0; rank < 3; ++rank) {
    const XmlElement ground = GroundOfRank(elements, rank);
    size_t below = 0;
    for (const XmlElement& box : BoxesOfRank(elements, rank)) {
      if (!absl::StrContains(box.text, "SEND") &&
          !absl::StrContains(box.text, "RECV")) {
        continue;
      }
      EXPECT_GE(box.Number("y"), ground.Number("y") + ground.Number("height"));
      EXPECT_LT(box.Number("height"), ground.Number("height") / 2);
      ++below;
    }
    EXPECT_EQ(below, exhibit.timeline.ranks[rank].communications.size());
    EXPECT_GT(below, 0u);
  }
}

TEST(SvgTest, LargePictureIsSmallAndComplete) {
  const Exhibit exhibit = ExhibitOf("zb_h1", {64, 1, 1024});
  const std::string svg = *DrawSvg({{exhibit}});
  EXPECT_LT(svg.size(), size_t{6} << 20);
  const std::vector<XmlElement> elements = *ReadXml(svg);
  const XmlElement ground = GroundOfRank(elements, 0);
  const double scale = ground.Number("width") / exhibit.timeline.makespan;
  for (size_t rank = 0; rank < 64; ++rank) {
    // The boxes are consecutive, from the first begin to the last end.
    const std::vector<XmlElement> boxes = BoxesOfRank(elements, rank);
    double covered = 0;
    double last = 0;
    for (const XmlElement& box : boxes) {
      const double begin = std::max(last, box.Number("x"));
      last = std::max(last, box.Number("x") + box.Number("width"));
      covered += std::max(0.0, last - begin);
    }
    const RankTimeline& line = exhibit.timeline.ranks[rank];
    EXPECT_NEAR(boxes.front().Number("x"),
                ground.Number("x") + line.first() * scale, 0.1);
    EXPECT_NEAR(last, ground.Number("x") + line.last() * scale, 0.5);
    EXPECT_GE(covered, line.busy * scale - 1);
  }
  for (const XmlElement& element : elements) {
    EXPECT_FALSE(element.name == "text" && element.Get("class") == "middle" &&
                 element.group != "panel/time")
        << element.text;
  }
}

TEST(SvgTest, AnyTitleGivesValidXml) {
  Exhibit exhibit = ExhibitOf("1f1b", {2, 1, 2});
  for (const std::string& title :
       {std::string("<a href=\"x\">&amp;'</a>"),
        std::string("\0\x01\xff]]>", 6), std::string(100000, '&'),
        std::string("<!--"), std::string()}) {
    exhibit.title = title;
    EXPECT_THAT(ReadXml(*DrawSvg({{exhibit}})), IsOk());
  }
}

TEST(SvgTest, DrawsEmptyTimelines) {
  EXPECT_THAT(ReadXml(*DrawSvg({{Exhibit{}}})), IsOk());
  Exhibit exhibit;
  exhibit.timeline.ranks.resize(2);
  EXPECT_THAT(ReadXml(*DrawSvg({{exhibit}})), IsOk());
  exhibit.timeline.ranks[1].computations = {
      {{ActionKind::kForward, 0, 0}, 0, 0}};
  EXPECT_THAT(ReadXml(*DrawSvg({{exhibit}})), IsOk());
}

TEST(SvgTest, TheSameTimelinesGiveTheSameBytes) {
  const std::vector<Exhibit> exhibits = {ExhibitOf("v_half", {4, 2, 9})};
  EXPECT_EQ(*DrawSvg(exhibits), *DrawSvg(exhibits));
}

TEST(SvgTest, RejectsEmptyInput) {
  EXPECT_THAT(DrawSvg({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("no timeline")));
}

TEST(SvgCheckerTest, FindsFaults) {
  for (const char* fault :
       {"", "<a>", "<a></b>", "<a x=1/>", "<a x=\"1\" x=\"2\"/>", "<a>&</a>",
        "<a>&nbsp;</a>", "<a x=\"<\"/>", "<a/><b/>", "text", "<a>\x01</a>"}) {
    EXPECT_FALSE(ReadXml(fault).ok()) << fault;
  }
  EXPECT_THAT(ReadXml("<a x=\"1\">t<b/></a>\n"), IsOk());
}

}  // namespace
}  // namespace tessera::pipeline
