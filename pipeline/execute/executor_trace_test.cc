// Tests what the executor records of a step: times and bytes.
#include <algorithm>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "pipeline/execute/testing/layer_stack.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {
namespace {

using collectives::Communicator;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::ElementsAre;

Schedule ScheduleOf(std::string_view name, int64_t ranks, int64_t chunks,
                    int64_t microbatches) {
  return *Generate(name, {ranks, chunks, microbatches});
}

// The largest number of bytes of boundary tensors that a rank holds if it
// executes its list in order with synchronous messages. Independent of the
// executor.
int64_t PeakBytes(const Schedule& lowered, const StackShape& shape,
                  int32_t rank) {
  const auto bytes = [&](int32_t after) -> int64_t {
    const bool inside = after >= 0 && after + 1 < lowered.map.stages();
    return inside ? shape.rows * shape.widths[static_cast<size_t>(after) + 1] *
                        static_cast<int64_t>(sizeof(double))
                  : 0;
  };
  int64_t held = 0;
  int64_t peak = 0;
  for (const Action& a : lowered.ranks[static_cast<size_t>(rank)]) {
    const bool takes_input = a.kind == ActionKind::kReceiveForward ||
                             a.kind == ActionKind::kSendBackward;
    const int64_t input = bytes(a.stage - 1);
    const int64_t output = bytes(a.stage);
    if (Receives(a.kind)) held += takes_input ? input : output;
    if (a.kind == ActionKind::kForward) held += output;
    if (GivesInputGradient(a.kind)) held += input;
    peak = std::max(peak, held);
    if (GivesWeightGradient(a.kind)) held -= input + output;
    if (Sends(a.kind)) held -= takes_input ? input : output;
  }
  EXPECT_EQ(held, 0);
  return peak;
}

TEST(ExecutorTraceTest, HoldsBoundaryTensorsAsScheduled) {
  for (const Generator& generator : Generators()) {
    SCOPED_TRACE(generator.name);
    const int64_t chunks = generator.chunks == 0 ? 2 : generator.chunks;
    const Schedule lowered =
        *AddCommunication(*generator.generate({4, chunks, 9}));
    const StackShape shape = ShapeFor(lowered);
    EXPECT_THAT(
        RunRanks(
            4,
            [&](Communicator& c) -> absl::Status {
              TESSERA_ASSIGN_OR_RETURN(
                  const auto rank, MakeStackRank<double>(c, lowered, shape));
              TESSERA_RETURN_IF_ERROR(rank.executor->Run().status());
              const int64_t r = c.rank().value();
              EXPECT_EQ(rank.executor->timeline().peak_bytes,
                        PeakBytes(lowered, shape, static_cast<int32_t>(r)));
              return CheckTimeline(*rank.executor, r);
            }),
        Each(IsOk()));
  }
}

// Inputs are released after the forward; gradients are unchanged.
TEST(ExecutorTraceTest, ReleasesInputIfStageKeepsIt) {
  const Schedule schedule = *ReadCsv("0F0,1F0,0F1,1F1,1B1,0B1,1B0,0B0\n");
  const StackShape shape = ShapeFor(schedule);
  const Reference<double> expected = RunSequentially<double>(shape);
  for (const bool keeps_input : {false, true}) {
    EXPECT_THAT(
        RunRanks(1,
                 [&](Communicator& c) -> absl::Status {
                   TESSERA_ASSIGN_OR_RETURN(
                       const auto rank,
                       MakeStackRank<double>(c, schedule, shape));
                   for (auto& stage : rank.stages) {
                     stage->keeps_input = keeps_input;
                   }
                   TESSERA_ASSIGN_OR_RETURN(const StepResult step,
                                            rank.executor->Run());
                   TESSERA_RETURN_IF_ERROR(CheckAgainst(expected, step, rank));
                   // 2 rows of 5 doubles each: the output of stage 0 for both
                   // micro-batches, and the gradient of one.
                   EXPECT_EQ(rank.executor->timeline().peak_bytes,
                             keeps_input ? 80 : 240);
                   return CheckTimeline(*rank.executor, 0);
                 }),
        Each(IsOk()));
  }
}

TEST(ExecutorTraceTest, StartedMessagesHoldAFewTensorsMore) {
  const Schedule lowered = *AddCommunication(ScheduleOf("gpipe", 3, 1, 16));
  const StackShape shape = ShapeFor(lowered);
  const int64_t largest = shape.rows * 6 * 8;
  EXPECT_THAT(RunRanks(3,
                       [&](Communicator& c) -> absl::Status {
                         TESSERA_ASSIGN_OR_RETURN(
                             const auto rank,
                             MakeStackRank<double>(c, lowered, shape,
                                                   {.start_from_bytes = 0,
                                                    .receives_ahead = 2,
                                                    .sends_in_flight = 3}));
                         TESSERA_RETURN_IF_ERROR(rank.executor->Run().status());
                         const int64_t least =
                             PeakBytes(lowered, shape,
                                       static_cast<int32_t>(c.rank().value()));
                         EXPECT_LE(rank.executor->timeline().peak_bytes,
                                   least + 2 * (2 + 3) * largest);
                         return absl::OkStatus();
                       }),
              Each(IsOk()));
}

TEST(ExecutorTraceTest, SplitBackwardsKeepTheOutputsGradient) {
  // Both stages are on one rank: x1 lives from F to W, dx1 from I to W.
  const Schedule schedule = *ReadCsv("0F0,1F0,1I0,0I0,0W0,1W0\n");
  EXPECT_THAT(
      RunRanks(1,
               [&](Communicator& c) -> absl::Status {
                 TESSERA_RETURN_IF_ERROR(CheckStack<double>(c, schedule));
                 TESSERA_ASSIGN_OR_RETURN(
                     const auto rank,
                     MakeStackRank<double>(c, schedule, ShapeFor(schedule)));
                 TESSERA_RETURN_IF_ERROR(rank.executor->Run().status());
                 std::vector<int64_t> bytes;
                 for (const MemoryChange& change :
                      rank.executor->timeline().memory) {
                   bytes.push_back(change.bytes);
                 }
                 // 2 rows of 5 doubles.
                 EXPECT_THAT(bytes, ElementsAre(80, 160, 80, 0));
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(ExecutorTraceTest, EveryRankHasTimelineOfAllRanks) {
  const Schedule schedule = ScheduleOf("zb_h1", 3, 1, 4);
  EXPECT_THAT(
      RunRanks(3,
               [&](Communicator& c) -> absl::Status {
                 TESSERA_ASSIGN_OR_RETURN(
                     const auto rank,
                     MakeStackRank<double>(c, schedule, ShapeFor(schedule)));
                 TESSERA_RETURN_IF_ERROR(rank.executor->Run().status());
                 TESSERA_ASSIGN_OR_RETURN(const Timeline all,
                                          rank.executor->GatherTimeline());
                 EXPECT_EQ(all.ranks.size(), 3);
                 double longest = 0;
                 for (size_t r = 0; r < 3; ++r) {
                   const RankTimeline& line = all.ranks[r];
                   std::vector<Action> computed;
                   double before = 0;
                   for (const TimedAction& timed : line.computations) {
                     EXPECT_LE(before, timed.begin);
                     EXPECT_LE(timed.begin, timed.end);
                     before = timed.end;
                     computed.push_back(timed.action);
                   }
                   EXPECT_EQ(computed, schedule.ranks[r]);
                   EXPECT_EQ(line.communications.size(), r == 1 ? 16u : 8u);
                   EXPECT_EQ(line.memory.back().bytes, 0);
                   longest = std::max(longest, line.last());
                 }
                 EXPECT_EQ(all.makespan, longest);
                 EXPECT_GT(all.longest_stage, 0);
                 EXPECT_GE(all.BubbleRate(), 0);
                 EXPECT_LT(all.BubbleRate(), 1);
                 const RankTimeline& own = rank.executor->timeline();
                 const RankTimeline& told =
                     all.ranks[static_cast<size_t>(c.rank().value())];
                 EXPECT_EQ(own.peak_bytes, told.peak_bytes);
                 EXPECT_EQ(own.peak_activations, told.peak_activations);
                 EXPECT_EQ(own.memory.size(), told.memory.size());
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(ExecutorTraceTest, WithoutATraceOnlyPeaksAreRecorded) {
  const Schedule schedule = ScheduleOf("1f1b", 2, 1, 3);
  EXPECT_THAT(
      RunRanks(2,
               [&](Communicator& c) -> absl::Status {
                 TESSERA_ASSIGN_OR_RETURN(
                     const auto rank,
                     MakeStackRank<float>(c, schedule, ShapeFor(schedule),
                                          {.trace = false}));
                 TESSERA_RETURN_IF_ERROR(rank.executor->Run().status());
                 const RankTimeline& line = rank.executor->timeline();
                 EXPECT_TRUE(line.computations.empty());
                 EXPECT_TRUE(line.communications.empty());
                 EXPECT_EQ(line.peak_activations, 2 - c.rank().value());
                 EXPECT_GT(line.peak_bytes, 0);
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

}  // namespace
}  // namespace tessera::pipeline
