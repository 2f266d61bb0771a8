// The effect on a timeline of links, and of messages that do or do not overlap;
// expected times are computed by hand.
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/schedule/schedule_text.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr StageCosts kStage = {.forward = 1,
                               .backward_input = 1,
                               .backward_weight = 1,
                               .activation_bytes = 8,
                               .gradient_bytes = 4};

Costs WithLinks(int64_t stages, const Link& link) {
  Costs costs = Costs::Uniform(stages, kStage);
  costs.links.everywhere = link;
  return costs;
}

std::vector<std::string> TextOf(const std::vector<TimedAction>& actions) {
  std::vector<std::string> text;
  for (const TimedAction& timed : actions) {
    text.push_back(absl::StrCat(timed.action.ToString(), " ", timed.begin, "-",
                                timed.end));
  }
  return text;
}

Timeline TimesOf(std::string_view table, const Costs& costs) {
  return *Simulate(*ReadCsv(table), costs);
}

TEST(LinksTest, AMessageTakesLatencyAndBytesOverBandwidth) {
  const Timeline timeline = TimesOf(
      "0F0,0B0\n1F0,1B0\n", WithLinks(2, {.latency = 0.5, .bandwidth = 2}));
  EXPECT_THAT(TextOf(timeline.ranks[1].computations),
              ElementsAre("1F0 5.5-6.5", "1B0 6.5-8.5"));
  EXPECT_THAT(TextOf(timeline.ranks[0].computations),
              ElementsAre("0F0 0-1", "0B0 11-13"));
  EXPECT_THAT(TextOf(timeline.ranks[0].communications),
              ElementsAre("0SEND_F0 1-5.5", "0RECV_B0 8.5-11"));
  EXPECT_THAT(TextOf(timeline.ranks[1].communications),
              ElementsAre("1RECV_F0 1-5.5", "1SEND_B0 8.5-11"));
  EXPECT_EQ(timeline.makespan, 13);
}

TEST(LinksTest, TheConstantDelayComesOnTop) {
  Costs costs = WithLinks(2, {.latency = 0.5, .bandwidth = 2});
  costs.stages[0].communication = 3;
  const Timeline timeline = TimesOf("0F0\n1F0\n", costs);
  EXPECT_EQ(timeline.ranks[1].computations[0].begin, 8.5);
}

TEST(LinksTest, MessagesQueueForBandwidthNotLatency) {
  const Timeline timeline =
      TimesOf("0F0,0F1,0F2\n1F0,1F1,1F2\n",
              WithLinks(2, {.latency = 10, .bandwidth = 4}));
  // Each holds the link for 2 and arrives 12 after it started.
  EXPECT_THAT(TextOf(timeline.ranks[0].communications),
              ElementsAre("0SEND_F0 1-13", "0SEND_F1 3-15", "0SEND_F2 5-17"));
}

TEST(LinksTest, TheTwoDirectionsAndOtherPairsDoNotQueue) {
  Costs costs = WithLinks(3, {.bandwidth = 1});
  // Each ordered pair has its own link: 0 to 1 is slow, 1 to 0 is fast.
  costs.links.exceptions[{1, 0}] = {.bandwidth = 4};
  const Timeline timeline = TimesOf("0F0,0B0\n1F0,1B0\n2F0,2B0\n", costs);
  EXPECT_THAT(TextOf(timeline.ranks[1].communications),
              ElementsAre("1RECV_F0 1-9", "1SEND_F0 10-18", "1RECV_B0 21-25",
                          "1SEND_B0 27-28"));
}

TEST(LinksTest, StagesOfOneRankNeedNoLink) {
  const Timeline timeline = TimesOf(
      "0F0,1F0,1B0,0B0\n", WithLinks(2, {.latency = 9, .bandwidth = 1}));
  EXPECT_EQ(timeline.makespan, 6);
  EXPECT_TRUE(timeline.ranks[0].communications.empty());
}

TEST(LinksTest, LoweredMessagesStartAtTheirSend) {
  // The send comes after the second forward.
  const Timeline timeline = TimesOf(
      "0F0,0F1,0SEND_F0,0SEND_F1\n1RECV_F0,1F0,"
      "1RECV_F1,1F1\n",
      WithLinks(2, {.bandwidth = 4}));
  EXPECT_THAT(TextOf(timeline.ranks[0].communications),
              ElementsAre("0SEND_F0 2-4", "0SEND_F1 4-6"));
  EXPECT_THAT(TextOf(timeline.ranks[1].computations),
              ElementsAre("1F0 4-5", "1F1 6-7"));
}

TEST(LinksTest, ImpliedMessagesWithoutOverlapBlockSender) {
  Costs costs = WithLinks(2, {.latency = 0.5, .bandwidth = 4});
  costs.overlap_communication = false;
  const Timeline timeline =
      TimesOf("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", costs);
  // Forward messages take 2.5, backward ones 1.5.
  EXPECT_THAT(
      TextOf(timeline.ranks[0].computations),
      ElementsAre("0F0 0-1", "0F1 3.5-4.5", "0B0 8-10", "0B1 12.5-14.5"));
  EXPECT_THAT(TextOf(timeline.ranks[1].computations),
              ElementsAre("1F0 3.5-4.5", "1B0 4.5-6.5", "1F1 8-9", "1B1 9-11"));
}

TEST(LinksTest, LoweredMessagesWithoutOverlapRendezvous) {
  Costs costs = WithLinks(2, {.latency = 0.5, .bandwidth = 4});
  costs.overlap_communication = false;
  const Timeline timeline = TimesOf(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1\n",
      costs);
  // The second send arrives at 4.5 and waits until rank 1 finishes 1B0 at 6.5.
  EXPECT_THAT(TextOf(timeline.ranks[0].communications),
              ElementsAre("0SEND_F0 1-3.5", "0SEND_F1 6.5-9", "0RECV_B0 9-10.5",
                          "0RECV_B1 13.5-15"));
  EXPECT_THAT(
      TextOf(timeline.ranks[0].computations),
      ElementsAre("0F0 0-1", "0F1 3.5-4.5", "0B0 10.5-12.5", "0B1 15-17"));
  EXPECT_THAT(TextOf(timeline.ranks[1].computations),
              ElementsAre("1F0 3.5-4.5", "1B0 4.5-6.5", "1F1 10.5-11.5",
                          "1B1 11.5-13.5"));
}

TEST(LinksTest, ExchangesTransferInBothDirections) {
  Costs costs = WithLinks(2, {.latency = 0.5, .bandwidth = 4});
  costs.overlap_communication = false;
  const Timeline timeline = TimesOf(
      "0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0),0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,(1SEND_B0;1RECV_F1),1F1,1B1,1SEND_B1\n",
      costs);
  // Both start when 1B0 ends at 6.5; forward takes 2.5, backward 1.5.
  EXPECT_THAT(TextOf(timeline.ranks[0].communications),
              ElementsAre("0SEND_F0 1-3.5", "0SEND_F1 6.5-9", "0RECV_B0 6.5-8",
                          "0RECV_B1 12-13.5"));
  EXPECT_THAT(
      TextOf(timeline.ranks[0].computations),
      ElementsAre("0F0 0-1", "0F1 3.5-4.5", "0B0 9-11", "0B1 13.5-15.5"));
}

TEST(LinksTest, NamesHangingHalfOfExchange) {
  Costs costs = Costs::Uniform(2, {});
  costs.overlap_communication = false;
  EXPECT_THAT(Simulate(*ReadCsv("0F0,0SEND_F0,0F1,(0SEND_F1;0RECV_B0),0B0\n"
                                "1RECV_F0,1F0,1B0,1RECV_F1,1F1\n"),
                       costs),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 0, action 4 (0RECV_B0) waits forever "
                                 "for 1SEND_B0")));
}

TEST(LinksTest, NamesDeadlockedSends) {
  Costs costs = Costs::Uniform(2, {});
  const Schedule crossed = *ReadCsv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  TESSERA_EXPECT_OK(Simulate(crossed, costs).status());
  costs.overlap_communication = false;
  EXPECT_THAT(Simulate(crossed, costs),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 0, action 3 (0SEND_F1) waits forever "
                                 "for 1RECV_F1")));
  const Schedule unsent = *ReadCsv("0F0,0F1,0SEND_F1\n1RECV_F0,1F0\n");
  EXPECT_THAT(Simulate(unsent, costs),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("(0SEND_F1) waits forever for 1RECV_F1")));
  costs.overlap_communication = true;
  EXPECT_THAT(Simulate(unsent, costs),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("(1F0) waits forever for 0SEND_F0")));
  EXPECT_THAT(Simulate(*ReadCsv("0SEND_F0,0F0\n1F0\n"), costs),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("(0SEND_F0) waits forever for 0F0")));
}

TEST(LinksTest, RejectsMessagesNotBetweenRanks) {
  const Costs costs = Costs::Uniform(2, {});
  for (const auto& [table, message] :
       std::vector<std::pair<const char*, const char*>>{
           {"0F0,1F0,1SEND_F0\n", "(1SEND_F0) connects no two ranks"},
           {"0F0,0SEND_F0,1F0\n", "(0SEND_F0) connects no two ranks"},
           {"0RECV_F0,0F0\n1F0\n", "(0RECV_F0) connects no two ranks"},
           {"0F0\n1F0,0SEND_F0\n", "(0SEND_F0) belongs to rank 0"}}) {
    EXPECT_THAT(
        Simulate(*ReadCsv(table), costs),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

TEST(LinksTest, RejectsWrongLinksAndSizes) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Schedule schedule = *ReadCsv("0F0\n1F0\n");
  const auto refusal = [&](const auto& change, std::string_view message) {
    Costs costs = Costs::Uniform(2, {});
    change(costs);
    EXPECT_THAT(Simulate(schedule, costs),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(std::string(message))));
  };
  for (const double wrong : {-1.0, nan, infinity}) {
    refusal([&](Costs& c) { c.links.everywhere.latency = wrong; },
            "the link everywhere has a latency of");
    refusal([&](Costs& c) { c.synchronisation = wrong; }, "a synchronisation");
    for (double StageCosts::*time :
         {&StageCosts::forward, &StageCosts::backward_input,
          &StageCosts::backward_weight, &StageCosts::communication,
          &StageCosts::unshard, &StageCosts::reduce_gradient,
          &StageCosts::optimizer}) {
      refusal([&](Costs& c) { c.stages[1].*time = wrong; },
              "in stage 1; times");
    }
  }
  for (const double wrong : {-1.0, 0.0, nan}) {
    refusal(
        [&](Costs& c) {
          c.links.exceptions[{0, 1}].bandwidth = wrong;
        },
        "the link from rank 0 to 1 has a bandwidth of");
  }
  for (const auto& ends :
       std::vector<std::pair<int32_t, int32_t>>{{0, 2}, {-1, 0}, {1, 1}}) {
    refusal([&](Costs& c) { c.links.exceptions[ends]; },
            "connects no two of 2 ranks");
  }
  for (int64_t StageCosts::*bytes :
       {&StageCosts::activation_bytes, &StageCosts::gradient_bytes,
        &StageCosts::unsharded_bytes}) {
    refusal([&](Costs& c) { c.stages[0].*bytes = -1; }, "-1 bytes of");
  }
  refusal(
      [](Costs& c) {
        c.stages[1].forward_bytes = std::numeric_limits<int64_t>::max();
      },
      "bytes in stage 1 for a rank of 1 actions");
}

}  // namespace
}  // namespace tessera::pipeline
