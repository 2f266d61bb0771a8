// Compares Simulate with relaxation on an explicit graph, for random schedules,
// costs and links; and its memory with a count at every moment.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/simulate/testing/longest_path.h"
#include "pipeline/simulate/testing/random_cases.h"

namespace tessera::pipeline {
namespace {

constexpr int kCases = 4000;

// In the graph sends and receives take no time of the rank, and RESHARD takes
// no time at all.
bool IsInGraph(const Action& action) {
  return !Communicates(action.kind) && action.kind != ActionKind::kReshard;
}

// The times of a rank's other actions, in list order.
std::vector<TimedAction> InListOrder(const std::vector<Action>& actions,
                                     const RankTimeline& line) {
  std::vector<TimedAction> timed;
  auto computation = line.computations.begin();
  auto other = line.communications.begin();
  for (const Action& action : actions) {
    if (!IsInGraph(action)) continue;
    if (Computes(action.kind)) {
      timed.push_back(*computation++);
      continue;
    }
    while (!IsInGraph(other->action)) ++other;
    timed.push_back(*other++);
  }
  return timed;
}

TEST(SimulateOracleTest, TimesMatchLongestPath) {
  std::mt19937_64 random(1);
  for (int i = 0; i < kCases && !HasFailure(); ++i) {
    const auto [schedule, costs] = MakeRandomCase(random);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                                 Simulate(schedule, costs));
    const LongestPath graph(schedule, costs);
    EXPECT_EQ(timeline.makespan, graph.makespan()) << WriteCsv(schedule);
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      size_t at = 0;
      for (const TimedAction& timed :
           InListOrder(schedule.ranks[rank], timeline.ranks[rank])) {
        while (!IsInGraph(schedule.ranks[rank][at])) ++at;
        ASSERT_EQ(timed.action, schedule.ranks[rank][at]);
        ASSERT_EQ(timed.begin, graph.BeginOf(rank, at)) << timed.action;
        ASSERT_EQ(timed.end - timed.begin, graph.TimeOf(rank, at));
        ++at;
      }
    }
  }
}

TEST(SimulateOracleTest, WithoutTracesTheTotalsAreTheSame) {
  std::mt19937_64 random(2);
  for (int i = 0; i < kCases / 4 && !HasFailure(); ++i) {
    const auto [schedule, costs] = MakeRandomCase(random);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline all, Simulate(schedule, costs));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline totals,
                                 Simulate(schedule, costs, {.traces = false}));
    EXPECT_EQ(totals.makespan, all.makespan);
    EXPECT_EQ(totals.longest_stage, all.longest_stage);
    for (size_t rank = 0; rank < all.ranks.size(); ++rank) {
      const RankTimeline& a = all.ranks[rank];
      const RankTimeline& b = totals.ranks[rank];
      EXPECT_TRUE(b.communications.empty());
      EXPECT_TRUE(b.memory.empty());
      EXPECT_EQ(b.peak_bytes, a.peak_bytes);
      EXPECT_EQ(b.peak_activations, a.peak_activations);
      EXPECT_EQ(b.busy, a.busy);
      EXPECT_EQ(b.last(), a.last());
      EXPECT_EQ(b.optimizer.end, a.optimizer.end);
    }
  }
}

bool HasMessages(const Schedule& schedule) {
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (Communicates(action.kind)) return true;
    }
  }
  return false;
}

// The peer rank of a send, and its matching receive.
struct OtherEnd {
  size_t rank;
  Action receive;
};
OtherEnd OtherEndOf(const Schedule& schedule, const Action& send) {
  const bool forward = send.kind == ActionKind::kSendForward;
  const int32_t stage = send.stage + (forward ? 1 : -1);
  return {static_cast<size_t>(schedule.RankOf(stage, send.microbatch)),
          {forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward,
           stage, send.microbatch}};
}

void ExpectApart(const RankTimeline& line, const TimedAction& message) {
  for (const TimedAction& computation : line.computations) {
    ASSERT_TRUE(computation.end <= message.begin ||
                computation.begin >= message.end)
        << computation.action << " during " << message.action;
  }
}

// Checks a send's duration, and that both ranks record it.
void ExpectSent(const RandomCase& given, const Timeline& timeline, size_t rank,
                const TimedAction& sent, double& link_free) {
  const auto [peer, receive] = OtherEndOf(given.schedule, sent.action);
  const auto& received = timeline.ranks[peer].communications;
  EXPECT_EQ(std::count_if(received.begin(), received.end(),
                          [wanted = receive, &sent](const TimedAction& other) {
                            return other.action == wanted &&
                                   other.begin == sent.begin &&
                                   other.end == sent.end;
                          }),
            1);
  const Link& link = given.costs.links.Of(static_cast<int32_t>(rank),
                                          static_cast<int32_t>(peer));
  const StageCosts& stage =
      given.costs.stages[static_cast<size_t>(sent.action.stage)];
  const int64_t bytes = sent.action.kind == ActionKind::kSendForward
                            ? stage.activation_bytes
                            : stage.gradient_bytes;
  const double wire = static_cast<double>(bytes) / link.bandwidth;
  EXPECT_EQ(sent.end - sent.begin, wire + link.latency + stage.communication);
  EXPECT_GE(sent.begin, link_free);
  link_free = sent.begin + wire;
}

// Both ranks record a message at the same time, a link carries one message at a
// time, and synchronous messages do not overlap with computation.
TEST(SimulateOracleTest, MessagesKeepTheirRules) {
  std::mt19937_64 random(3);
  for (int i = 0; i < kCases / 2 && !HasFailure(); ++i) {
    const RandomCase given = MakeRandomCase(random);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                                 Simulate(given.schedule, given.costs));
    const bool blocking = !given.costs.overlap_communication;
    const bool lowered = HasMessages(given.schedule);
    std::map<std::pair<size_t, size_t>, double> free_at;
    for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
      const RankTimeline& line = timeline.ranks[rank];
      EXPECT_TRUE(std::is_sorted(
          line.communications.begin(), line.communications.end(),
          [](const auto& a, const auto& b) { return a.begin < b.begin; }));
      for (const TimedAction& timed : line.communications) {
        const bool sends = Sends(timed.action.kind);
        if (!HasMicroBatch(timed.action.kind)) continue;
        if (blocking && (sends || lowered)) ExpectApart(line, timed);
        if (!sends) continue;
        const size_t peer = OtherEndOf(given.schedule, timed.action).rank;
        ExpectSent(given, timeline, rank, timed, free_at[{rank, peer}]);
      }
    }
  }
}

// The bytes held from `time` on.
int64_t HeldAt(const Costs& costs, const RankTimeline& line, double time) {
  int64_t held = 0;
  for (const TimedAction& timed : line.computations) {
    const int64_t bytes =
        costs.stages[static_cast<size_t>(timed.action.stage)].BytesOf(
            timed.action.kind);
    if ((bytes > 0 ? timed.begin : timed.end) <= time) held += bytes;
  }
  for (const TimedAction& timed : line.communications) {
    const int64_t bytes =
        costs.stages[static_cast<size_t>(timed.action.stage)].unsharded_bytes;
    if (timed.begin > time) continue;
    if (timed.action.kind == ActionKind::kUnshard) held += bytes;
    if (timed.action.kind == ActionKind::kReshard) held -= bytes;
  }
  return held;
}

TEST(SimulateOracleTest, MemoryMatchesHeldBytes) {
  std::mt19937_64 random(4);
  for (int i = 0; i < kCases / 2 && !HasFailure(); ++i) {
    const auto [schedule, costs] = MakeRandomCase(random);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Timeline timeline,
                                 Simulate(schedule, costs));
    for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
      const RankTimeline& line = timeline.ranks[rank];
      int64_t most = 0;
      double area = 0;
      double brute_area = 0;
      for (size_t c = 0; c < line.memory.size(); ++c) {
        const auto [time, bytes] = line.memory[c];
        most = std::max(most, bytes);
        const double next = c + 1 < line.memory.size() ? line.memory[c + 1].time
                                                       : timeline.makespan;
        ASSERT_LE(time, next);
        const int64_t held = HeldAt(costs, line, time);
        area += static_cast<double>(bytes) * (next - time);
        brute_area += static_cast<double>(held) * (next - time);
        if (next > time) {
          ASSERT_EQ(bytes, held) << "at " << time;
        }
        EXPECT_GE(line.peak_bytes, held);
      }
      EXPECT_EQ(area, brute_area);
      EXPECT_EQ(line.peak_bytes, most);
      // All memory is released at the end.
      if (!line.memory.empty()) {
        EXPECT_EQ(line.memory.back().bytes, 0);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::pipeline
