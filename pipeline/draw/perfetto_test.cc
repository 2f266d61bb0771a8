#include "pipeline/draw/perfetto.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Exhibit ExhibitOf(std::string_view name, const PipelineShape& shape,
                  const StageCosts& costs = {}) {
  const Schedule schedule = *Generate(name, shape);
  return {std::string(name),
          *Simulate(schedule, Costs::Uniform(schedule.map.stages(), costs)), 0};
}

Json Events(const std::vector<Exhibit>& exhibits, const TimeUnit& unit = {}) {
  return Json::parse(*DrawPerfetto(exhibits, unit))["traceEvents"];
}

using Slice = std::pair<double, double>;  // Begin and end, in microseconds.

TEST(PerfettoTest, EveryActionIsAnEventOfItsProcess) {
  const std::vector<Exhibit> exhibits = {
      ExhibitOf("1f1b", {4, 1, 8}, {.communication = 0.25}),
      ExhibitOf("dualpipe", {4, 1, 8})};
  const Json events = Events(exhibits, kMilliseconds);
  for (size_t process = 0; process < exhibits.size(); ++process) {
    std::map<std::string, std::vector<Slice>> drawn;
    for (const Json& event : events) {
      if (event["ph"] != "X" || event["pid"] != process) continue;
      const double begin = event["ts"];
      drawn[event["name"]].emplace_back(begin,
                                        begin + event["dur"].get<double>());
      EXPECT_TRUE(event["args"].contains("stage"));
      EXPECT_TRUE(event["args"].contains("microbatch"));
      const Action action = *ParseAction(event["name"].get<std::string>());
      EXPECT_EQ(event["cat"], std::string(ActionKindName(action.kind)));
      EXPECT_EQ(event["args"]["stage"], action.stage);
      EXPECT_EQ(event["args"]["microbatch"], action.microbatch);
    }
    size_t count = 0;
    for (const RankTimeline& rank : exhibits[process].timeline.ranks) {
      for (const auto* actions : {&rank.computations, &rank.communications}) {
        for (const TimedAction& timed : *actions) {
          ++count;
          const auto& slices = drawn[timed.action.ToString()];
          ASSERT_EQ(slices.size(), 1u) << timed.action;
          EXPECT_NEAR(slices[0].first, timed.begin * 1e3, 1e-3);
          EXPECT_NEAR(slices[0].second, timed.end * 1e3, 2e-3);
        }
      }
    }
    EXPECT_EQ(drawn.size(), count);
  }
}

TEST(PerfettoTest, ThreadsHaveNamesAndDisjointEvents) {
  Exhibit exhibit =
      ExhibitOf("interleaved_1f1b", {4, 2, 12}, {.communication = 2.5});
  // Two actions that run at the same time.
  RankTimeline& rank = exhibit.timeline.ranks[1];
  rank.computations.push_back(rank.computations.back());
  rank.computations.back().action.microbatch = 99;
  const Json events = Events({exhibit});
  std::map<int, std::vector<Slice>> slices;
  std::map<int, std::string> names;
  std::set<int> places;
  for (const Json& event : events) {
    if (event["ph"] == "X") {
      const double begin = event["ts"];
      slices[event["tid"]].emplace_back(begin,
                                        begin + event["dur"].get<double>());
    } else if (event["name"] == "thread_name") {
      EXPECT_TRUE(names.emplace(event["tid"], event["args"]["name"]).second);
    } else if (event["name"] == "thread_sort_index") {
      EXPECT_TRUE(places.insert(event["args"]["sort_index"].get<int>()).second);
    }
  }
  EXPECT_EQ(names.size(), slices.size());
  EXPECT_EQ(places.size(), slices.size());
  for (int tid = 0; tid < 4; ++tid) {
    EXPECT_EQ(names[tid], "rank " + std::to_string(tid));
  }
  std::set<std::string> all;
  for (const auto& [tid, name] : names) all.insert(name);
  EXPECT_EQ(all.size(), names.size());
  EXPECT_TRUE(all.count("rank 1 (2)") == 1);
  EXPECT_TRUE(all.count("rank 3 communication") == 1);
  for (auto& [tid, thread] : slices) {
    std::sort(thread.begin(), thread.end());
    for (size_t i = 1; i < thread.size(); ++i) {
      EXPECT_LE(thread[i - 1].second, thread[i].first + 2e-3) << names[tid];
    }
  }
}

TEST(PerfettoTest, CountersFollowTheMemoryOfARank) {
  const Exhibit exhibit = ExhibitOf("zb_h1", {2, 1, 4},
                                    {.forward_bytes = 100,
                                     .backward_input_bytes = -60,
                                     .backward_weight_bytes = -40});
  const Json events = Events({exhibit});
  std::map<std::string, std::vector<int64_t>> counters;
  double last = 0;
  for (const Json& event : events) {
    if (event["ph"] != "C") continue;
    auto& counter = counters[event["name"]];
    if (counter.empty()) last = 0;
    EXPECT_GE(event["ts"].get<double>(), last);
    last = event["ts"];
    counter.push_back(event["args"]["bytes"]);
  }
  ASSERT_EQ(counters.size(), 2u);
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto& counter = counters["rank " + std::to_string(rank) + " memory"];
    EXPECT_EQ(*std::max_element(counter.begin(), counter.end()),
              exhibit.timeline.ranks[rank].peak_bytes);
    EXPECT_EQ(counter.back(), 0);
  }
}

TEST(PerfettoTest, WithoutMemoryItCountsMicroBatches) {
  Exhibit exhibit = ExhibitOf("1f1b", {2, 1, 3});
  for (RankTimeline& rank : exhibit.timeline.ranks) rank.memory.clear();
  int64_t most = 0;
  for (const Json& event : Events({exhibit})) {
    if (event["name"] != "rank 0 micro-batches") continue;
    most = std::max(most, event["args"]["microbatches"].get<int64_t>());
  }
  EXPECT_EQ(most, 2);
}

TEST(PerfettoTest, ProcessTitlesMayContainAnyBytes) {
  std::vector<Exhibit> exhibits = {ExhibitOf("1f1b", {2, 1, 2}), {}};
  exhibits[0].title = "\"\\\n\x01<\xff>\xc3\xa9";
  exhibits[1].title = "measured";
  std::vector<std::string> titles;
  for (const Json& event : Events(exhibits)) {
    if (event["name"] == "process_name") {
      titles.push_back(event["args"]["name"]);
    }
  }
  EXPECT_EQ(titles, (std::vector<std::string>{
                        "\"\\\n\x01<\xef\xbf\xbd>\xc3\xa9", "measured"}));
}

TEST(PerfettoTest, ShowsParameterAndOptimizerEvents) {
  Exhibit exhibit;
  RankTimeline rank;
  rank.communications = {{{ActionKind::kUnshard, 3, kNoMicroBatch}, 0, 1}};
  rank.optimizer = {5, 6};
  exhibit.timeline.ranks = {rank};
  exhibit.timeline.synchronisation = {4, 5};
  std::map<std::string, Json> events;
  for (const Json& event : Events({exhibit})) {
    if (event["ph"] == "X") events[event["name"]] = event;
  }
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events["3UNSHARD"]["args"], Json::parse(R"({"stage":3})"));
  EXPECT_EQ(events["optimizer"]["ts"], 5e6);
  EXPECT_EQ(events["synchronisation"]["dur"], 1e6);
}

TEST(PerfettoTest, RejectsEmptyInput) {
  EXPECT_THAT(DrawPerfetto({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("no timeline")));
}

}  // namespace
}  // namespace tessera::pipeline
