#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/panels.h"
#include "pipeline/draw/perfetto.h"

namespace tessera::pipeline {
namespace {

// Consecutive actions of length 0 to 3 with pauses of 0 to 3.
std::vector<TimedAction> RandomLine(std::mt19937_64& random, size_t count) {
  std::vector<TimedAction> actions;
  double now = 0;
  for (size_t i = 0; i < count; ++i) {
    now += random() % 3 == 0 ? static_cast<double>(random() % 300) / 100 : 0;
    const double time = static_cast<double>(random() % 301) / 100;
    actions.push_back(
        {{ActionKind::kForward, 0, static_cast<int32_t>(i)}, now, now + time});
    now += time;
  }
  return actions;
}

TEST(BoxesTest, EveryActionIsInOneBoxAndBoxesAreFew) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::vector<TimedAction> actions = RandomLine(random, random() % 60);
    const double least = static_cast<double>(random() % 400) / 100;
    const std::vector<Box> boxes = BoxesOf(actions, least);
    size_t next = 0;
    for (const Box& box : boxes) {
      ASSERT_EQ(box.first, next);
      next += box.count;
      EXPECT_EQ(box.begin, actions[box.first].begin);
      EXPECT_EQ(box.end, actions[next - 1].end);
      for (size_t i = box.first; box.count > 1 && i < next; ++i) {
        EXPECT_LT(actions[i].end - actions[i].begin, least);
        if (i > box.first) {
          EXPECT_LT(actions[i].begin - actions[i - 1].end, least);
        }
      }
    }
    EXPECT_EQ(next, actions.size());
    if (least > 0 && !actions.empty()) {
      EXPECT_LE(static_cast<double>(boxes.size()),
                2 * actions.back().end / least + 2);
    }
  }
}

TEST(BoxesTest, WithoutMinimumEveryActionHasOwnBox) {
  std::mt19937_64 random(2);
  EXPECT_EQ(BoxesOf(RandomLine(random, 50), 0).size(), 50u);
  EXPECT_TRUE(BoxesOf({}, 1).empty());
}

TEST(LanesTest, UsesMinimalLanesWithoutOverlap) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<TimedAction> actions(random() % 30);
    for (TimedAction& timed : actions) {
      timed.begin = static_cast<double>(random() % 20);
      timed.end = timed.begin + static_cast<double>(random() % 6);
    }
    std::sort(actions.begin(), actions.end(),
              [](const TimedAction& a, const TimedAction& b) {
                return a.begin < b.begin;
              });
    const std::vector<size_t> lanes = LanesOf(actions);
    ASSERT_EQ(lanes.size(), actions.size());
    size_t most = 0;
    size_t at_once = 0;
    for (size_t i = 0; i < actions.size(); ++i) {
      most = std::max(most, lanes[i] + 1);
      size_t running = 1;
      for (size_t j = 0; j < i; ++j) {
        if (actions[j].end <= actions[i].begin) continue;
        ++running;
        EXPECT_NE(lanes[i], lanes[j]);
      }
      at_once = std::max(at_once, running);
    }
    EXPECT_EQ(most, at_once);
  }
}

TEST(ChunksTest, CountsTheRanksStagesFromTheFirst) {
  RankTimeline rank;
  EXPECT_EQ(Chunks(rank).count(), 0);
  for (const int32_t stage : {6, 1, 6, 3}) {
    rank.computations.push_back({{ActionKind::kForward, stage, 0}, 0, 0});
  }
  const Chunks chunks(rank);
  EXPECT_EQ(chunks.count(), 3);
  EXPECT_EQ(chunks.Of(1), 0);
  EXPECT_EQ(chunks.Of(3), 1);
  EXPECT_EQ(chunks.Of(6), 2);
}

TEST(TicksTest, StepsAreRoundFewAndNotTooFew) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 2000; ++round) {
    const double last =
        std::pow(10, static_cast<double>(random() % 1200) / 100 - 6);
    const int most = 2 + static_cast<int>(random() % 20);
    const std::vector<double> ticks = TicksTo(last, most);
    ASSERT_GE(ticks.size(), 1u);
    EXPECT_LE(ticks.size(), static_cast<size_t>(most));
    EXPECT_EQ(ticks[0], 0);
    EXPECT_LE(ticks.back(), last * (1 + 1e-9));
    if (most < 6) continue;
    ASSERT_GE(static_cast<double>(ticks.size()), most / 2.5 - 1) << last;
    const double digit =
        ticks[1] / std::pow(10, std::floor(std::log10(ticks[1]) + 1e-9));
    EXPECT_TRUE(std::abs(digit - 1) < 1e-6 || std::abs(digit - 2) < 1e-6 ||
                std::abs(digit - 5) < 1e-6)
        << ticks[1];
  }
  EXPECT_EQ(TicksTo(0, 5), std::vector<double>{0});
  EXPECT_EQ(TicksTo(-1, 5), std::vector<double>{0});
  EXPECT_EQ(TicksTo(33, 8), (std::vector<double>{0, 5, 10, 15, 20, 25, 30}));
}

TEST(TicksTest, FormatsNumbersReadably) {
  EXPECT_EQ(NumberText(69), "69");
  EXPECT_EQ(NumberText(1240.216), "1240.2");
  EXPECT_EQ(NumberText(0), "0");
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(999), "999 B");
  EXPECT_EQ(BytesText(1609728), "1.61 MB");
  EXPECT_EQ(BytesText(999999), "1 MB");
  EXPECT_EQ(BytesText(-2000), "-2 kB");
  EXPECT_EQ(BytesText(int64_t{1} << 62), "4.61 EB");
}

TEST(CurveTest, HoldsMicroBatchFromForwardToLastBackward) {
  Timeline timeline;
  timeline.ranks.resize(2);
  timeline.ranks[0].computations = {{{ActionKind::kForward, 0, 0}, 0, 1},
                                    {{ActionKind::kForward, 0, 1}, 1, 2},
                                    {{ActionKind::kBackwardInput, 0, 0}, 2, 3},
                                    {{ActionKind::kBackwardWeight, 0, 0}, 3, 4},
                                    {{ActionKind::kForward, 0, 2}, 4, 5},
                                    {{ActionKind::kBackward, 0, 1}, 5, 7}};
  const Curves curves = CurvesOf(timeline);
  EXPECT_FALSE(curves.are_bytes);
  EXPECT_EQ(curves.peak, 2);
  ASSERT_EQ(curves.ranks.size(), 2u);
  EXPECT_TRUE(curves.ranks[1].empty());
  std::vector<std::pair<double, int64_t>> steps;
  for (const MemoryChange& change : curves.ranks[0]) {
    steps.emplace_back(change.time, change.bytes);
  }
  EXPECT_EQ(steps, (std::vector<std::pair<double, int64_t>>{
                       {0, 1}, {1, 2}, {4, 2}, {7, 1}}));
  timeline.ranks[1].memory = {{0, 5}, {3, 9}, {3, 7}};
  const Curves bytes = CurvesOf(timeline);
  EXPECT_TRUE(bytes.are_bytes);
  EXPECT_TRUE(bytes.ranks[0].empty());
  ASSERT_EQ(bytes.ranks[1].size(), 2u);
  EXPECT_EQ(bytes.ranks[1][1].bytes, 7);
  EXPECT_EQ(bytes.peak, 7);
}

int64_t At(const Curve& curve, double time) {
  int64_t held = 0;
  for (const MemoryChange& change : curve) {
    if (change.time <= time) held = change.bytes;
  }
  return held;
}

TEST(CurveTest, ThinningKeepsPeakAndLastValue) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    Curve curve;
    double now = 0;
    for (uint64_t i = random() % 200; i > 0; --i) {
      now += static_cast<double>(random() % 100 + 1) / 100;
      curve.push_back({now, static_cast<int64_t>(random() % 50)});
    }
    const double step = static_cast<double>(random() % 500 + 1) / 100;
    const Curve thinned = Thinned(curve, step);
    std::map<double, int64_t> most, most_thinned;
    std::map<double, size_t> changes;
    for (const MemoryChange& change : curve) {
      int64_t& held = most[std::floor(change.time / step)];
      held = std::max(held, change.bytes);
    }
    for (const MemoryChange& change : thinned) {
      ++changes[std::floor(change.time / step)];
    }
    for (const auto& [interval, count] : changes) EXPECT_LE(count, 3u);
    for (const auto& [interval, held] : most) {
      int64_t shown = 0;
      for (const MemoryChange& change : curve) {
        if (std::floor(change.time / step) == interval) {
          shown = std::max(shown, At(thinned, change.time));
        }
      }
      EXPECT_EQ(shown, held);
    }
    for (size_t i = 0; i < curve.size(); ++i) {
      const bool is_last =
          i + 1 == curve.size() || std::floor(curve[i].time / step) !=
                                       std::floor(curve[i + 1].time / step);
      if (!is_last) continue;
      EXPECT_EQ(At(thinned, curve[i].time), curve[i].bytes);
    }
  }
}

}  // namespace
}  // namespace tessera::pipeline
