#include "pipeline/proof/validate.h"

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/passes/place_parameters.h"
#include "pipeline/proof/action_position.h"
#include "pipeline/proof/testing/schedules.h"

namespace tessera::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ValidateOptions kImplied = {.communication = Communication::kImplied};

auto Refuses(const std::string& part) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part));
}

constexpr std::string_view kOneMessageEach =
    "0F0,0SEND_F0,0RECV_B0,0B0\n"
    "1RECV_F0,1F0,1B0,1SEND_B0\n";

TEST(ValidateTest, CountsActionsOfLoweredSchedule) {
  const auto proof = Validate(FromCsv(kOneMessageEach));
  ASSERT_THAT(proof, IsOk());
  EXPECT_EQ(proof->computations, 4);
  EXPECT_EQ(proof->messages, 2);
  EXPECT_THAT(proof->peak_activations, ElementsAre(1, 1));
  EXPECT_THAT(proof->peak_unsharded, ElementsAre(0, 0));
}

TEST(ValidateTest, PeaksMatchPapers) {
  for (int32_t ranks = 1; ranks <= 6; ++ranks) {
    for (int32_t m = 1; m <= 9; ++m) {
      const auto gpipe = Validate(
          AllForwardAllBackward(*StageMap::Linear(ranks), m), kImplied);
      ASSERT_THAT(gpipe, IsOk());
      EXPECT_THAT(gpipe->peak_activations, Each(m));
      EXPECT_EQ(gpipe->messages, 2 * (ranks - 1) * m);
      const auto alternating =
          Validate(OneForwardOneBackward(ranks, m), kImplied);
      ASSERT_THAT(alternating, IsOk());
      EXPECT_EQ(alternating->computations, 2 * ranks * m);
      for (int32_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(alternating->peak_activations[static_cast<size_t>(rank)],
                  std::min(m, ranks - rank));
      }
    }
  }
}

TEST(ValidateTest, ActivationsWaitForTheWeightGradient) {
  const auto proof = Validate(FromCsv("0F0,0I0,0F1,0I1,0W0,0W1\n"));
  ASSERT_THAT(proof, IsOk());
  EXPECT_THAT(proof->peak_activations, ElementsAre(2));
  EXPECT_THAT(proof->peak_before_backward, ElementsAre(1));
}

TEST(ValidateTest, CountsBothActivationsOfPair) {
  for (const char* table : {"0F0,0F1,0B0,0B1\n", "0F0,0B0,0F1,0B1\n"}) {
    SCOPED_TRACE(table);
    Schedule schedule = FromCsv(table);
    schedule.ranks[0][1].with_next = true;
    const auto proof = Validate(schedule);
    ASSERT_THAT(proof, IsOk());
    EXPECT_THAT(proof->peak_activations, ElementsAre(2));
    EXPECT_THAT(proof->peak_before_backward, ElementsAre(2));
  }
}

TEST(ValidateTest, ReportsCoverageErrorsWithPosition) {
  Schedule schedule = FromCsv(kOneMessageEach);
  schedule.ranks[0].pop_back();
  EXPECT_THAT(Validate(schedule), Refuses("rank 0 never executes 0B0"));
  schedule = FromCsv(kOneMessageEach);
  schedule.ranks[1].push_back({ActionKind::kForward, 1, 0});
  EXPECT_THAT(Validate(schedule),
              Refuses("rank 1, action 4 (1F0) repeats rank 1, action 1 (1F0)"));
  schedule = FromCsv(kOneMessageEach);
  schedule.ranks[1].push_back({ActionKind::kBackwardWeight, 1, 0});
  EXPECT_THAT(Validate(schedule), Refuses("(1W0) repeats"));
  schedule = FromCsv(kOneMessageEach);
  schedule.ranks[1][2].kind = ActionKind::kBackwardInput;
  EXPECT_THAT(Validate(schedule), Refuses("rank 1 never executes 1W0"));
  schedule.ranks[1][2].kind = ActionKind::kBackwardWeight;
  EXPECT_THAT(Validate(schedule), Refuses("rank 1 never executes 1I0"));
  schedule = FromCsv(kOneMessageEach);
  schedule.ranks[0][0].stage = 2;
  EXPECT_THAT(
      Validate(schedule),
      Refuses("rank 0, action 0 (2F0): the schedule has stages 0 to 1"));
  schedule.ranks[0][0] = {ActionKind::kForward, 1, 0};
  EXPECT_THAT(Validate(schedule),
              Refuses("rank 0, action 0 (1F0): the action is rank 1's"));
  schedule.ranks[0][0] = {ActionKind::kForward, 0, 1};
  EXPECT_THAT(Validate(schedule), Refuses("micro-batches 0 to 0"));
  schedule.ranks[0][0] = {ActionKind::kForward, 0};
  EXPECT_THAT(Validate(schedule), Refuses("micro-batches 0 to 0"));
}

TEST(ValidateTest, RejectsInvalidSizes) {
  Schedule schedule = FromCsv(kOneMessageEach);
  schedule.ranks.pop_back();
  EXPECT_THAT(Validate(schedule), Refuses("1 lists of actions; its map has 2"));
  schedule = FromCsv(kOneMessageEach);
  schedule.microbatches = 0;
  EXPECT_THAT(Validate(schedule), Refuses("0 micro-batches; at least 1"));
  schedule.microbatches = 1 << 30;  // Too many to allocate memory for.
  EXPECT_THAT(Validate(schedule), Refuses("4 computations"));
  EXPECT_THAT(Validate(FromCsv(kOneMessageEach), {.buffers = -1}),
              Refuses("-1 buffers"));
}

TEST(ValidateTest, RejectsInvalidLocalOrder) {
  EXPECT_THAT(Validate(FromCsv("0B0,0F0\n")),
              Refuses("rank 0, action 0 (0B0) waits for rank 0, action 1 (0F0),"
                      " which comes later"));
  EXPECT_THAT(Validate(FromCsv("0F0,0W0,0I0\n")),
              Refuses("action 1 (0W0) waits for rank 0, action 2 (0I0)"));
  EXPECT_THAT(Validate(FromCsv("0SEND_F0,0F0,0RECV_B0,0B0\n"
                               "1RECV_F0,1F0,1B0,1SEND_B0\n")),
              Refuses("(0SEND_F0) waits for rank 0, action 1 (0F0)"));
  EXPECT_THAT(Validate(FromCsv("0F0,0SEND_F0,0B0,0RECV_B0\n"
                               "1RECV_F0,1F0,1B0,1SEND_B0\n")),
              Refuses("(0B0) waits for rank 0, action 3 (0RECV_B0)"));
}

TEST(ValidateTest, PairsAreAForwardAndAnIndependentBackward) {
  Schedule schedule = FromCsv("0F0,0F1,0B0,0B1\n");
  auto& actions = schedule.ranks[0];
  actions[0].with_next = true;
  EXPECT_THAT(Validate(schedule),
              Refuses("(0F0) runs together with rank 0, action 1 (0F1); only"));
  actions[0].with_next = false;
  actions[3].with_next = true;
  EXPECT_THAT(Validate(schedule), Refuses("but is the rank's last"));
  schedule = FromCsv("0F0,0B0\n");
  schedule.ranks[0][0].with_next = true;
  EXPECT_THAT(Validate(schedule), Refuses("with which it runs together"));
  schedule = FromCsv("0F0,0F1,0B0,0F2,0B1,0B2\n");
  schedule.ranks[0][1].with_next = true;
  EXPECT_THAT(Validate(schedule), IsOk());
  schedule.ranks[0][2].with_next = true;
  EXPECT_THAT(Validate(schedule), Refuses("and the one after it"));
}

TEST(ValidateTest, RejectsMissingAndSuperfluousMessages) {
  EXPECT_THAT(
      Validate(FromCsv("0F0,0RECV_B0,0B0\n"
                       "1RECV_F0,1F0,1B0,1SEND_B0\n")),
      Refuses("rank 0 never executes 0SEND_F0, for which rank 1 waits with "
              "1RECV_F0"));
  EXPECT_THAT(
      Validate(FromCsv("0F0,0SEND_F0,0RECV_B0,0B0\n"
                       "1F0,1B0,1SEND_B0\n")),
      Refuses("rank 1 never executes 1RECV_F0, for which rank 0 waits"));
  EXPECT_THAT(
      Validate(FromCsv("0F0,0B0,0SEND_B0\n")),
      Refuses("(0SEND_B0) has no receiver: stage 0 is the first stage"));
  EXPECT_THAT(Validate(FromCsv("0F0,0SEND_F0,1F0,1B0,0B0\n")),
              Refuses("(0SEND_F0) is not needed: stage 1 is on the same rank"));
  EXPECT_THAT(Validate(FromCsv(kOneMessageEach), kImplied),
              Refuses("rank 0, action 1 (0SEND_F0) is communication"));
}

TEST(ValidateTest, ChannelsKeepOrder) {
  EXPECT_THAT(
      Validate(FromCsv("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                       "1RECV_F1,1F1,1RECV_F0,1F0,1B0,1SEND_B0,1B1,1SEND_B1\n"),
               {.buffers = 5}),
      Refuses("rank 1, action 0 (1RECV_F1) waits for its message, but the next "
              "from rank 0 is that of rank 0, action 1 (0SEND_F0)"));
}

// Rank 0 sends its second forward while rank 1 sends its first backward.
constexpr std::string_view kCrossingSends =
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";

TEST(ValidateTest, CrossingSendsDeadlockUnderRendezvousOnly) {
  EXPECT_THAT(
      Validate(FromCsv(kCrossingSends)),
      Refuses(
          "deadlock: rank 0, action 3 (0SEND_F1) waits for rank 1, action 4 "
          "(1RECV_F1), which comes after rank 1, action 3 (1SEND_B0), which "
          "waits for rank 0, action 4 (0RECV_B0), which comes after rank 0, "
          "action 3 (0SEND_F1)"));
  EXPECT_THAT(Validate(FromCsv(kCrossingSends), {.buffers = 1}), IsOk());
}

TEST(ValidateTest, DeadlocksOnlyWithTooFewBuffers) {
  const Schedule schedule = FromCsv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,"
      "0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,"
      "1RECV_F2,1F2,1B2,1SEND_B2\n");
  EXPECT_THAT(Validate(schedule, {.buffers = 0}), Refuses("deadlock"));
  EXPECT_THAT(Validate(schedule, {.buffers = 1}), IsOk());
  // No rank receives before it has sent everything.
  Schedule late = FromCsv(
      "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1B1,1SEND_B0,1SEND_B1\n");
  EXPECT_THAT(Validate(late), IsOk());
}

TEST(ValidateTest, NamesReceiveThatFreesBuffer) {
  // Two messages each way before either rank receives.
  const Schedule schedule = FromCsv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0F3,0SEND_F3,"
      "0RECV_B1,0B1,0RECV_B2,0B2,0RECV_B3,0B3\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1,1RECV_F2,1F2,1B2,"
      "1SEND_B2,1RECV_F3,1F3,1B3,1SEND_B3\n");
  EXPECT_THAT(Validate(schedule), Refuses("deadlock"));
  EXPECT_THAT(Validate(schedule, {.buffers = 1}), IsOk());
  const Schedule crossing = FromCsv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0F3,0SEND_F3,"
      "0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2,0RECV_B3,0B3\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1,"
      "1RECV_F2,1F2,1RECV_F3,1F3,1B2,1SEND_B2,1B3,1SEND_B3\n");
  EXPECT_THAT(Validate(crossing, {.buffers = 1}),
              Refuses("rank 0, action 7 (0SEND_F3) waits for rank 1, action 8 "
                      "(1RECV_F2), which comes after rank 1, action 7 "
                      "(1SEND_B1), which waits for rank 0, action 8 "
                      "(0RECV_B0)"));
  EXPECT_THAT(Validate(crossing, {.buffers = 2}), IsOk());
}

TEST(ValidateTest, DetectsCyclesOfComputations) {
  const Schedule schedule = FromCsv(
      "0F0,0B0,0F1,0B1\n"
      "1F0,1F1,1B0,1B1\n");
  EXPECT_THAT(
      Validate(schedule, kImplied),
      Refuses(
          "deadlock: rank 0, action 1 (0B0) waits for rank 1, action 2 "
          "(1B0), which comes after rank 1, action 1 (1F1), which waits for "
          "rank 0, action 2 (0F1), which comes after rank 0, action 1 "
          "(0B0)"));
}

TEST(ValidateTest, TruncatesLongCycles) {
  // Rank 0 expects the first micro-batch back from the last rank before it
  // sends the second; all others expect the second first.
  Schedule schedule = AllForwardAllBackward(*StageMap::Loop(12, 2), 2);
  for (size_t rank = 0; rank < 12; ++rank) {
    auto& actions = schedule.ranks[rank];
    const size_t at = rank == 0 ? 1 : 0;
    std::swap(actions[at], actions[at + 1]);
  }
  EXPECT_THAT(
      Validate(schedule, kImplied),
      AllOf(Refuses("deadlock: rank 0, action 1 (12F0) waits for rank 11, "
                    "action 1 (11F0), which comes after rank 11, action 0 "
                    "(11F1), which waits for rank 10, action 0 (10F1)"),
            Refuses(", and so on over 12 ranks")));
}

TEST(ValidateTest, RequiresParametersGatheredBeforeUse) {
  const auto one = [](const char* table) { return Validate(FromCsv(table)); };
  EXPECT_THAT(one("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD\n"), IsOk());
  EXPECT_THAT(one("0F0,0UNSHARD,0B0,0RESHARD\n"),
              Refuses("rank 0, action 0 (0F0) waits for the stage's parameters,"
                      " which no action before it gathers"));
  EXPECT_THAT(one("0UNSHARD,0F0,0RESHARD,0B0\n"),
              Refuses("which rank 0, action 2 (0RESHARD) has released"));
  EXPECT_THAT(one("0UNSHARD,0UNSHARD,0F0,0B0,0RESHARD\n"),
              Refuses("gathered already, by rank 0, action 0 (0UNSHARD)"));
  EXPECT_THAT(one("0UNSHARD,0F0,0B0,0RESHARD,0RESHARD\n"),
              Refuses("action 4 (0RESHARD): the stage is not gathered"));
  EXPECT_THAT(one("0UNSHARD,0F0,0B0\n"), Refuses("followed by no 0RESHARD"));
  const auto peak =
      one("0UNSHARD,0F0,1UNSHARD,1F0,1B0,1RESHARD,0B0,0RESHARD,0REDUCE_GRAD,"
          "1REDUCE_GRAD\n");
  ASSERT_THAT(peak, IsOk());
  EXPECT_THAT(peak->peak_unsharded, ElementsAre(2));
}

TEST(ValidateTest, RequiresReductionAfterLastGradient) {
  EXPECT_THAT(
      Validate(FromCsv("0F0,0I0,0REDUCE_GRAD,0W0\n")),
      Refuses("rank 0, action 2 (0REDUCE_GRAD) reduces nothing: the first "
              "weight gradient is rank 0, action 3 (0W0)"));
  EXPECT_THAT(
      Validate(FromCsv("0F0,0B0,0REDUCE_GRAD,0F1,0B1\n")),
      Refuses("rank 0, action 2 (0REDUCE_GRAD) is the last reduction of "
              "the stage's gradients, and comes before its last"));
  EXPECT_THAT(Validate(FromCsv("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n")),
              Refuses("rank 0, action 3 (0REDUCE_GRAD) reduces nothing: there "
                      "was no weight gradient since rank 0, action 2"));
  EXPECT_THAT(Validate(FromCsv("0F0,0B0,0REDUCE_GRAD,0F1,0B1,0REDUCE_GRAD\n")),
              IsOk());
  EXPECT_THAT(Validate(FromCsv("0F0,1F0,1B0,0B0,0REDUCE_GRAD\n")),
              Refuses("rank 0 never executes 1REDUCE_GRAD"));
  Schedule schedule = FromCsv(kOneMessageEach);
  schedule.ranks[0].push_back({ActionKind::kReduceGradient, 1});
  EXPECT_THAT(Validate(schedule), Refuses("the stage is rank 1's"));
  schedule.ranks[0].back() = {ActionKind::kUnshard, 0, 0};
  EXPECT_THAT(Validate(schedule), Refuses("takes no micro-batch"));
}

TEST(ValidateTest, LimitsBytesOfParametersAndGradients) {
  // Stage 0 has 10 bytes of parameters and 100 of gradients, stage 1 has 20 and
  // 200. The reduction of stage 1 may run until that of stage 0 starts.
  const Schedule schedule = FromCsv(
      "0UNSHARD,0F0,1UNSHARD,1F0,1B0,1REDUCE_GRAD,1RESHARD,0B0,0REDUCE_GRAD,"
      "0RESHARD\n");
  ValidateOptions options;
  options.parameters = {.unsharded_bytes = {10, 20},
                        .unreduced_bytes = {100, 200}};
  const auto proof = Validate(schedule, options);
  ASSERT_THAT(proof, IsOk());
  EXPECT_THAT(proof->peak_unsharded_bytes, ElementsAre(30));
  EXPECT_THAT(proof->peak_parameter_bytes, ElementsAre(310));
  options.parameters.limit = 310;
  EXPECT_THAT(Validate(schedule, options), IsOk());
  options.parameters.limit = 309;
  EXPECT_THAT(
      Validate(schedule, options),
      Refuses("rank 0, action 7 (0B0): the rank then holds 310 bytes, 10 of "
              "gathered parameters (stages 0) and 300 of unreduced gradients; "
              "the limit is 309"));
  options.parameters = {.unsharded_bytes = {10}};
  EXPECT_THAT(Validate(schedule, options),
              Refuses("of 1 stages; the schedule has 2"));
  options.parameters = {.unreduced_bytes = {10, -1}};
  EXPECT_THAT(Validate(schedule, options), Refuses("-1 bytes"));
}

// Several pipelines that share the parameters of each stage: gathers and
// reductions wait for the same rank of all pipelines, messages for their peer.
bool ReplicasFinish(const Schedule& schedule, size_t replicas,
                    std::mt19937_64& random) {
  const size_t ranks = schedule.ranks.size();
  std::vector<std::vector<size_t>> at(replicas, std::vector<size_t>(ranks));
  const auto action_at = [&](size_t replica, size_t rank) -> const Action* {
    const auto& list = schedule.ranks[rank];
    const size_t position = at[replica][rank];
    return position < list.size() ? &list[position] : nullptr;
  };
  const auto step = [&](size_t replica, size_t rank) {
    const Action* const action = action_at(replica, rank);
    if (action == nullptr) return false;
    if (Computes(action->kind) || action->kind == ActionKind::kReshard) {
      ++at[replica][rank];
      return true;
    }
    if (!HasMicroBatch(action->kind)) {
      for (size_t other = 0; other < replicas; ++other) {
        if (at[other][rank] != at[replica][rank]) return false;
      }
      for (size_t other = 0; other < replicas; ++other) ++at[other][rank];
      return true;
    }
    const auto peer = static_cast<size_t>(PeerOf(schedule, *action));
    const Action* const theirs = action_at(replica, peer);
    if (theirs == nullptr || !Communicates(theirs->kind)) return false;
    const PassDirection direction = DirectionOf(action->kind);
    const bool meets = Sends(action->kind) != Sends(theirs->kind) &&
                       DirectionOf(theirs->kind) == direction &&
                       theirs->microbatch == action->microbatch &&
                       static_cast<size_t>(PeerOf(schedule, *theirs)) == rank;
    if (!meets) return false;
    ++at[replica][rank];
    ++at[replica][peer];
    return true;
  };
  size_t idle = 0;
  while (idle < 40 * replicas * ranks) {
    idle = step(random() % replicas, random() % ranks) ? 0 : idle + 1;
  }
  for (size_t replica = 0; replica < replicas; ++replica) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (action_at(replica, rank) != nullptr) return false;
    }
  }
  return true;
}

TEST(ValidateTest, ReplicasOfAProvenScheduleDoNotDeadlock) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    const auto ranks = static_cast<int64_t>(1 + random() % 3);
    const auto chunks = static_cast<int64_t>(1 + random() % 3);
    const Schedule computations = RandomOrder(
        *StageMap::Loop(ranks, chunks), static_cast<int32_t>(1 + random() % 3),
        random() % 2 == 0, random);
    const auto placed = PlaceParameters(
        computations,
        {.prefetch = static_cast<int64_t>(random() % 4),
         .reduce = random() % 2 == 0 ? ReducePlacement::kEachMicroBatch
                                     : ReducePlacement::kLastMicroBatch});
    ASSERT_THAT(placed, IsOk());
    const auto lowered = AddCommunication(*placed);
    ASSERT_THAT(lowered, IsOk());
    ASSERT_THAT(Validate(*lowered), IsOk());
    EXPECT_TRUE(ReplicasFinish(*lowered, 1 + random() % 3, random))
        << WriteCsv(*lowered);
  }
}

TEST(ValidateTest, LargeSchedulesAreProven) {
  const auto lowered =
      AddCommunication(AllForwardAllBackward(*StageMap::Loop(64, 2), 1024));
  ASSERT_THAT(lowered, IsOk());
  const auto proof = Validate(*lowered);
  ASSERT_THAT(proof, IsOk());
  EXPECT_EQ(proof->computations, 64 * 2 * 1024 * 2);
  EXPECT_EQ(proof->messages, 127 * 2 * 1024);
}

}  // namespace
}  // namespace tessera::pipeline
