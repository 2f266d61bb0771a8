#include "pipeline/passes/add_communication.h"

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/passes/place_parameters.h"
#include "pipeline/proof/testing/oracle.h"
#include "pipeline/proof/testing/schedules.h"
#include "pipeline/proof/validate.h"

namespace tessera::pipeline {

namespace {

using ::testing::HasSubstr;

std::string Lowered(const Schedule& schedule) {
  const auto lowered = AddCommunication(schedule);
  return lowered.ok() ? WriteCsv(*lowered) : lowered.status().ToString();
}

TEST(AddCommunicationTest, CrossingNeighboursAgreeOnOrder) {
  EXPECT_EQ(Lowered(OneForwardOneBackward(2, 3)),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,"
            "0RECV_B2,0B2\n"
            "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1RECV_F2,1SEND_B1,1F2,"
            "1B2,1SEND_B2\n");
}

TEST(AddCommunicationTest, StagesOfTheSameRankNeedNone) {
  EXPECT_EQ(Lowered(AllForwardAllBackward(*StageMap::Zigzag(2, 2), 1)),
            "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n"
            "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0\n");
  EXPECT_EQ(Lowered(FromCsv("0F0,1F0,1B0,0B0\n")), "0F0,1F0,1B0,0B0\n");
}

TEST(AddCommunicationTest, PairsStayTogether) {
  Schedule schedule = OneForwardOneBackward(2, 3);
  ASSERT_EQ(schedule.ranks[1][1].ToString(), "1B0");
  schedule.ranks[1][1].with_next = true;
  const auto lowered = AddCommunication(schedule);
  ASSERT_THAT(lowered, IsOk());
  EXPECT_THAT(Validate(*lowered), IsOk());
  const auto& actions = lowered->ranks[1];
  ASSERT_TRUE(actions[3].with_next);
  EXPECT_EQ(actions[2].ToString(), "1RECV_F1");
  EXPECT_EQ(actions[3].ToString(), "1B0");
  EXPECT_EQ(actions[4].ToString(), "1F1");
  EXPECT_EQ(actions[5].ToString(), "1SEND_B0");
}

TEST(AddCommunicationTest, ParametersKeepPlaceAndStartBeforeReceives) {
  EXPECT_EQ(Lowered(FromCsv("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n"
                            "1F0,1B0,1REDUCE_GRAD\n")),
            "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n");
}

std::vector<Action> WithoutCommunication(const std::vector<Action>& actions) {
  std::vector<Action> rest;
  for (const Action& action : actions) {
    if (!Communicates(action.kind)) rest.push_back(action);
  }
  return rest;
}

// Returns true if the receive at `at` is needed by the next action that is not
// a receive: a computation that uses one of the received tensors, or a send.
bool IsLate(const std::vector<Action>& actions, size_t at) {
  size_t end = at;
  while (Receives(actions[end].kind)) ++end;
  if (Sends(actions[end].kind)) return true;
  for (size_t i = end; i < end + (actions[end].with_next ? 2U : 1U); ++i) {
    for (size_t r = at; r < end; ++r) {
      const bool forward = actions[r].kind == ActionKind::kReceiveForward;
      if (actions[i].stage == actions[r].stage &&
          actions[i].microbatch == actions[r].microbatch &&
          (forward ? actions[i].kind == ActionKind::kForward
                   : GivesInputGradient(actions[i].kind))) {
        return true;
      }
    }
  }
  return false;
}

// Returns true if only communication lies between the send at `at` and its
// computation or pair.
bool IsPrompt(const std::vector<Action>& actions, size_t at) {
  size_t last = at - 1;
  while (Communicates(actions[last].kind)) --last;
  const size_t first =
      last > 0 && actions[last - 1].with_next ? last - 1 : last;
  const bool forward = actions[at].kind == ActionKind::kSendForward;
  for (size_t i = first; i <= last; ++i) {
    if (actions[i].stage == actions[at].stage &&
        actions[i].microbatch == actions[at].microbatch &&
        (forward ? actions[i].kind == ActionKind::kForward
                 : GivesInputGradient(actions[i].kind))) {
      return true;
    }
  }
  return false;
}

TEST(AddCommunicationTest, AnyValidOrderRunsUnderRendezvous) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 5000 && !HasFailure(); ++i) {
    Schedule schedule =
        RandomOrder(RandomMap(random), static_cast<int32_t>(1 + random() % 5),
                    random() % 2 == 0, random);
    if (random() % 2 == 0) schedule = *PlaceParameters(schedule);
    const auto lowered = AddCommunication(schedule);
    ASSERT_THAT(lowered, IsOk());
    SCOPED_TRACE(WriteCsv(*lowered));
    EXPECT_THAT(Validate(*lowered), IsOk());
    EXPECT_TRUE(OracleAllows(*lowered, {}));
    EXPECT_TRUE(OracleAllows(*lowered, {.buffers = 1}));
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      const auto& actions = lowered->ranks[rank];
      EXPECT_EQ(WithoutCommunication(actions), schedule.ranks[rank]);
      for (size_t at = 0; at < actions.size(); ++at) {
        const ActionKind kind = actions[at].kind;
        EXPECT_TRUE(!Receives(kind) || IsLate(actions, at)) << at;
        EXPECT_TRUE(!Sends(kind) || IsPrompt(actions, at)) << at;
      }
    }
  }
}

TEST(AddCommunicationTest, RejectsInvalidOrders) {
  EXPECT_THAT(AddCommunication(FromCsv("0F0,0B0,0F1,0B1\n"
                                       "1F0,1F1,1B0,1B1\n")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 0, action 1 (0B0) waits for rank 1, "
                                 "action 2 (1B0)")));
  EXPECT_THAT(AddCommunication(FromCsv("0B0,0F0\n")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("action 0 (0B0) waits for")));
  EXPECT_THAT(AddCommunication(FromCsv("0F0,0SEND_F0,0B0\n1F0,1B0\n")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("(0SEND_F0) is communication")));
}

Schedule Lowered(std::string_view name, const PipelineShape& shape) {
  return *AddCommunication(*Generate(name, shape));
}

int64_t Pairs(const std::vector<Action>& actions) {
  return std::count_if(actions.begin(), actions.end(), [](const Action& a) {
    return a.with_next && Communicates(a.kind);
  });
}

TEST(ExchangeTest, NeighboursWithOnePeerBecomeOne) {
  const Schedule fused = FuseMessages(
      FromCsv("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
              "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"));
  EXPECT_EQ(WriteCsv(fused),
            "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0),0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,(1SEND_B0;1RECV_F1),1F1,1B1,1SEND_B1\n");
  EXPECT_THAT(Validate(fused), IsOk());
  EXPECT_THAT(Validate(fused, {.buffers = 1}), IsOk());
}

TEST(ExchangeTest, TheSteadyStateOf1F1BConsistsOfThem) {
  constexpr int64_t kMicroBatches = 20;
  const Schedule fused = FuseMessages(Lowered("1f1b", {4, 1, kMicroBatches}));
  for (size_t rank = 0; rank < 4; ++rank) {
    // Between two neighbours, every backward except those of the cool-down
    // exchanges a gradient for an activation.
    const int64_t neighbours = rank == 0 || rank == 3 ? 1 : 2;
    EXPECT_GE(Pairs(fused.ranks[rank]), neighbours * (kMicroBatches - 4))
        << "rank " << rank;
  }
}

TEST(ExchangeTest, ScheduleOfEveryGeneratorStaysValid) {
  int64_t pairs = 0;
  for (const Generator& generator : Generators()) {
    for (const int64_t ranks : {1, 2, 3, 4, 6}) {
      if (generator.even_ranks && ranks % 2 != 0) continue;
      for (const int64_t microbatches : {1, 3, 4, 13}) {
        const int64_t chunks = generator.chunks == 0 ? 2 : generator.chunks;
        const Schedule lowered =
            Lowered(generator.name, {ranks, chunks, microbatches});
        const Schedule fused = FuseMessages(lowered);
        for (const int64_t buffers : {0, 1, 2}) {
          ASSERT_THAT(Validate(fused, {.buffers = buffers}), IsOk())
              << WriteCsv(fused);
        }
        const auto proof = Validate(fused);
        const auto before = Validate(lowered);
        EXPECT_EQ(proof->messages, before->messages);
        EXPECT_EQ(proof->peak_activations, before->peak_activations);
        for (const auto& actions : fused.ranks) pairs += Pairs(actions);
        // It is what it was but for with_next, and fused once for all.
        EXPECT_EQ(FuseMessages(fused), fused);
        EXPECT_THAT(ReadCsv(WriteCsv(fused)), IsOk());
      }
    }
  }
  EXPECT_GT(pairs, 1000);
}

TEST(ExchangeTest, FusesSendsThatWouldDeadlock) {
  const Schedule crossing = FromCsv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1I0,1SEND_B0,1RECV_F1,1W0,1F1,1B1,1SEND_B1\n");
  EXPECT_THAT(Validate(crossing),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("deadlock: rank 0, action 3 (0SEND_F1) waits "
                                 "for rank 1, action 4 (1RECV_F1)")));
  const Schedule fused = FuseMessages(crossing);
  EXPECT_THAT(Validate(fused), IsOk());
}

TEST(ExchangeTest, ReportsDeadlockOfExchanges) {
  // Rank 0 exchanges with rank 1 what rank 1 gives only later.
  const Schedule schedule = FromCsv(
      "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B1),0RECV_B0,0B0,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_THAT(Validate(schedule),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("(0RECV_B1) waits for its message, but the "
                                 "next")));
  const Schedule late = FromCsv(
      "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0),0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n");
  EXPECT_THAT(Validate(late), IsOk());
  // Three ranks: 1 exchanges with 2 a tensor that 2 has only after 1 proceeds.
  const Schedule stuck = FromCsv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,(1SEND_F0;1RECV_B0),1RECV_F1,1F1,1SEND_F1,1B0,1SEND_B0,"
      "1RECV_B1,1B1,1SEND_B1\n"
      "2RECV_F0,2F0,2RECV_F1,2F1,2B0,2SEND_B0,2B1,2SEND_B1\n");
  for (const int64_t buffers : {0, 1}) {
    EXPECT_THAT(
        Validate(stuck, {.buffers = buffers}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("deadlock: rank 1, action 3 (1RECV_B0) waits for "
                           "rank 2, action 5 (2SEND_B0), which comes after "
                           "rank 2, action 2 (2RECV_F1), which waits for rank "
                           "1, action 6 (1SEND_F1), which comes after rank 1, "
                           "action 3 (1RECV_B0)")));
  }
}

TEST(ExchangeTest, ValidateRejectsOtherPairsOfMessages) {
  Schedule schedule = FromCsv(
      "0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1B1,1SEND_B0,1SEND_B1\n");
  schedule.ranks[0][2].with_next = true;
  EXPECT_THAT(Validate(schedule),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("(0SEND_F0) runs together with rank 0, action "
                                 "3 (0SEND_F1); only")));
  schedule.ranks[0][2].with_next = false;
  schedule.ranks[0][1].with_next = true;
  EXPECT_THAT(Validate(schedule),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("(0F1) runs together with rank 0, action 2 "
                                 "(0SEND_F0); only")));
  // A receive from one rank and a send to another.
  Schedule three = FromCsv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1SEND_F0,1F1,1SEND_F1,1RECV_B0,1B0,"
      "1SEND_B0,1RECV_B1,1B1,1SEND_B1\n"
      "2RECV_F0,2F0,2RECV_F1,2F1,2B0,2SEND_B0,2B1,2SEND_B1\n");
  ASSERT_THAT(Validate(three), IsOk());
  const Schedule fused = FuseMessages(three);
  EXPECT_FALSE(fused.ranks[1][2].with_next);
  three.ranks[1][2].with_next = true;
  EXPECT_THAT(Validate(three),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a send and a receive with the same rank")));
}

}  // namespace

}  // namespace tessera::pipeline
