#include "pipeline/execute/execution_plan.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Listed(const ExecutionPlan& plan) {
  std::string text;
  for (const PlannedAction& planned : plan.actions()) {
    if (!text.empty()) text += planned.action.with_next ? ",(" : ",";
    text += planned.action.ToString();
  }
  return text;
}

// Stages 0 and 3 on rank 0, 1 and 2 on rank 1.
Schedule Zigzag() {
  return *ReadCsv(
      "0F0,0SEND_F0,3RECV_F0,3F0,3B0,3SEND_B0,0RECV_B0,0B0\n"
      "1RECV_F0,1F0,2F0,(2SEND_F0;2RECV_B0),2I0,1B0,1SEND_B0,2W0\n");
}

TEST(ExecutionPlanTest, PlansReceiverOfEveryTensor) {
  const ExecutionPlan plan = ExecutionPlan::Of(Zigzag(), 1, Passes::kBoth);
  EXPECT_THAT(plan.stages(), ElementsAre(1, 2));
  EXPECT_THAT(plan.receives(), ElementsAre(ElementsAre(0, 4), IsEmpty()));
  struct Row {
    int32_t local, peer, boundary, hands_to;
    bool operator==(const Row&) const = default;
  };
  std::vector<Row> rows;
  for (const PlannedAction& a : plan.actions()) {
    rows.push_back({a.local, a.peer, a.boundary, a.hands_to});
  }
  constexpr int32_t kNone = kNobody;
  EXPECT_THAT(rows, ElementsAre(Row{0, 0, 0, kNone},            // 1RECV_F0
                                Row{0, kNone, 1, 1},            // 1F0
                                Row{1, kNone, 2, kNone},        // 2F0
                                Row{1, 0, 2, kNone},            // 2SEND_F0
                                Row{1, 0, 2, kNone},            // 2RECV_B0
                                Row{1, kNone, 1, 0},            // 2I0
                                Row{0, kNone, 0, kNone},        // 1B0
                                Row{0, 0, 0, kNone},            // 1SEND_B0
                                Row{1, kNone, kNone, kNone}));  // 2W0
}

TEST(ExecutionPlanTest, DescribesActions) {
  const ExecutionPlan plan = ExecutionPlan::Of(Zigzag(), 1, Passes::kBoth);
  EXPECT_EQ(plan.Describe(plan.actions()[0]),
            "pipeline rank 1, action 0 (1RECV_F0): stage 1, micro-batch 0, "
            "from rank 0");
  EXPECT_EQ(plan.Describe(plan.actions()[3]),
            "pipeline rank 1, action 3 (2SEND_F0): stage 2, micro-batch 0, to "
            "rank 0");
  EXPECT_EQ(plan.Describe(plan.actions()[8]),
            "pipeline rank 1, action 8 (2W0): stage 2, micro-batch 0");
}

TEST(ExecutionPlanTest, ForwardOnlyPlanKeepsOrderWithoutHalfPairs) {
  const ExecutionPlan plan = ExecutionPlan::Of(Zigzag(), 1, Passes::kForward);
  EXPECT_EQ(Listed(plan), "1RECV_F0,1F0,2F0,2SEND_F0");
  EXPECT_EQ(plan.actions()[3].position, 3);
  EXPECT_THAT(plan.receives(), ElementsAre(ElementsAre(0), IsEmpty()));
  // For an overlapped pair the forward's row; gathers that a forward uses.
  const Schedule schedule = *ReadCsv(
      "0UNSHARD,0F0,(0F1;0B0)OVERLAP_F_B,0RESHARD,0UNSHARD,0B1,0RESHARD,"
      "0REDUCE_GRAD\n");
  EXPECT_EQ(Listed(ExecutionPlan::Of(schedule, 0, Passes::kForward)),
            "0UNSHARD,0F0,0F1,0RESHARD");
}

TEST(ExecutionPlanTest, TwoWayPlanSendsByDirectionOfMicroBatch) {
  // Micro-batch 0 enters at the front, micro-batch 1 at the back.
  const Schedule schedule = *ReadCsv(
      "0F0,0SEND_F0,1RECV_F1,1F1,1B1,1SEND_B1,0RECV_B0,0B0\n"
      "0F1,1RECV_F0,0SEND_F1,1F0,1B0,0RECV_B1,1SEND_B0,0B1\n");
  ASSERT_TRUE(schedule.map.two_way());
  const ExecutionPlan plan = ExecutionPlan::Of(schedule, 0, Passes::kBoth);
  EXPECT_THAT(plan.stages(), ElementsAre(0, 1));
  EXPECT_EQ(plan.actions()[0].hands_to, kNobody);
  EXPECT_EQ(plan.actions()[1].peer, 1);
  EXPECT_EQ(plan.actions()[2].peer, 1);
}

}  // namespace
}  // namespace tessera::pipeline
