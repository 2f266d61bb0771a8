#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/train/report/run_trace.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::json;

std::vector<std::string> Described(const std::vector<Slice>& slices) {
  std::vector<std::string> texts;
  for (const Slice& slice : slices) {
    texts.push_back(absl::StrCat(slice.label.name, " ", slice.span.begin, "-",
                                 slice.span.end));
  }
  return texts;
}

TEST(SlicesTest, SpansAreCutWhereTheirNameChanges) {
  EXPECT_THAT(
      Described(Slices({{0, 10}, {20, 30}},
                       {{{22, 25}, {"b"}}, {{5, 21}, {"a"}}, {{40, 50}, {"c"}}},
                       {"-"})),
      ElementsAre("- 0-5", "a 5-10", "a 20-21", "- 21-22", "b 22-25",
                  "- 25-30"));
  EXPECT_THAT(Described(Slices({{0, 10}}, {}, {"-"})), ElementsAre("- 0-10"));
  EXPECT_THAT(Described(Slices({}, {{{0, 1}, {"a"}}}, {"-"})), ElementsAre());
}

TEST(SlicesTest, OfLabelsThatOverlapTheFirstCounts) {
  EXPECT_THAT(Described(Slices(
                  {{0, 10}},
                  {{{2, 6}, {"a"}}, {{4, 8}, {"b"}}, {{5, 6}, {"c"}}}, {"-"})),
              ElementsAre("- 0-2", "a 2-6", "b 6-8", "- 8-10"));
}

TEST(SlicesTest, NoMomentIsLostOrDoubled) {
  std::mt19937_64 random(11);
  const auto raw = [&](uint64_t most) {
    std::vector<Span> spans;
    for (uint64_t i = random() % most; i > 0; --i) {
      const auto begin = static_cast<int64_t>(random() % 100);
      spans.push_back({begin, begin + static_cast<int64_t>(random() % 20)});
    }
    return spans;
  };
  for (int i = 0; i < 5'000; ++i) {
    const Spans spans = Merged(raw(6));
    std::vector<Slice> labels;
    for (const Span& span : raw(8)) labels.push_back({span, {"x"}});
    std::vector<Span> cut;
    int64_t length = 0;
    for (const Slice& slice : Slices(spans, labels, {"-"})) {
      ASSERT_GT(slice.span.size(), 0);
      ASSERT_TRUE(cut.empty() || cut.back().end <= slice.span.begin);
      cut.push_back(slice.span);
      length += slice.span.size();
    }
    ASSERT_EQ(Merged(cut), spans);
    ASSERT_EQ(length, Length(spans));
  }
}

StepActivity Activity() {
  using pipeline::ActionKind;
  StepActivity activity;
  activity.step = 9;
  activity.whole = {10'000, 20'000};
  activity.ops.spans = {{11'000, 12'000}};
  activity.passes = {{{ActionKind::kForward, 2, 7}, {10'500, 12'500}}};
  activity.messages = {
      {{ActionKind::kReceiveBackward, 2, 7}, {13'000, 15'000}, 14'000}};
  activity.collectives = {{.kind = collectives::OpKind::kAllReduce,
                           .bytes = 64,
                           .ranks = 4,
                           .begin_ns = 16'000,
                           .end_ns = 17'000}};
  activity.update = {18'000, 19'000};
  return activity;
}

Json Events(const StepActivity& activity, size_t most = kMostTraceEvents) {
  return Json::parse(
      "[" + StepEvents(activity, AccountOf(activity), {3, -10'000}, most) +
      "]");
}

TEST(StepEventsTest, EveryDoingIsAnEventOfItsThread) {
  std::vector<std::string> texts;
  for (const Json& event : Events(Activity())) {
    EXPECT_EQ(event["ph"], "X");
    EXPECT_EQ(event["pid"], 3);
    EXPECT_EQ(event["args"]["step"], 9);
    texts.push_back(absl::StrCat(
        event["tid"].get<int>(), " ", event["name"].get<std::string>(), " ",
        event["ts"].get<double>(), "+", event["dur"].get<double>()));
  }
  EXPECT_THAT(texts,
              ElementsAre("0 other 0+0.5", "0 2F7 0.5+2", "0 other 2.5+0.5",
                          "0 other 5+1", "0 other 7+1", "0 other 9+1",
                          "1 optimizer 8+1", "2 2RECV_B7 4+1",
                          "2 all_reduce 6+1", "3 before 2RECV_B7 3+1"));
}

TEST(StepEventsTest, AllToAllsBehindComputationsAreOnATrackOfTheirOwn) {
  StepActivity activity = Activity();
  // Under way while the rank computes, and after.
  activity.collectives = {{.kind = collectives::OpKind::kAllToAll,
                           .bytes = 64,
                           .ranks = 2,
                           .begin_ns = 11'000,
                           .end_ns = 12'700},
                          {.kind = collectives::OpKind::kAllToAll,
                           .ranks = 1,
                           .begin_ns = 12'800,
                           .end_ns = 12'900}};
  std::vector<std::string> texts;
  for (const Json& event : Events(activity)) {
    if (event["cat"] != "exchange") continue;
    EXPECT_EQ(event["args"]["bytes"], 64);
    texts.push_back(absl::StrCat(
        event["tid"].get<int>(), " ", event["name"].get<std::string>(), " ",
        event["ts"].get<double>(), "+", event["dur"].get<double>()));
  }
  EXPECT_THAT(texts, ElementsAre("8 all_to_all 1+1.7"));
}

TEST(StepEventsTest, PassesAndTrafficSayWhatTheyAre) {
  for (const Json& event : Events(Activity())) {
    if (event["name"] == "2F7") {
      EXPECT_EQ(event["cat"], "F");
      EXPECT_EQ(event["args"]["stage"], 2);
      EXPECT_EQ(event["args"]["microbatch"], 7);
    }
    if (event["name"] == "all_reduce") {
      EXPECT_EQ(event["args"]["bytes"], 64);
      EXPECT_EQ(event["args"]["ranks"], 4);
    }
  }
}

TEST(StepEventsTest, OfTooManyTheLongestStay) {
  std::vector<int> threads(5, 0);
  for (const Json& event : Events(Activity(), 1)) {
    ++threads[event["tid"].get<size_t>()];
    EXPECT_TRUE(event["tid"] != 0 || event["name"] == "2F7");
  }
  EXPECT_THAT(threads, ElementsAre(1, 1, 1, 1, 0));
}

TEST(StepEventsTest, ARankIsAProcessOfNamedThreads) {
  const Json events =
      Json::parse("[" + RankEvents({2, 0}, "rank 2 \"odd\"\xff") + "," +
                  CheckpointEvent("copy", {1'000, 3'500}, {2, 500}) + "]");
  EXPECT_EQ(events[0]["name"], "process_name");
  EXPECT_EQ(events[0]["pid"], 2);
  std::vector<std::string> names;
  for (const Json& event : events) {
    if (event["name"] == "thread_name") names.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(names,
              ElementsAre("compute", "optimizer", "communication", "bubble",
                          "offload", "checkpoint", "gathers of weights",
                          "reductions of gradients", "all-to-alls"));
  const Json& last = events.back();
  EXPECT_EQ(last["tid"], 5);
  EXPECT_EQ(last["ts"], 1.5);
  EXPECT_EQ(last["dur"], 2.5);
}

}  // namespace
}  // namespace tessera::train
