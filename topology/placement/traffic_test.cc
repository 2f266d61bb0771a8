#include "topology/placement/traffic.h"

#include <cmath>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TransformerShape Shape() {
  TransformerShape shape;
  shape.layers = 12;
  shape.hidden = 64;
  shape.kv_hidden = 16;
  shape.sequence = 128;
  shape.micro_batch = 2;
  shape.micro_batches = 5;
  shape.dense_parameters = 9600;
  shape.expert_parameters = 4800;
  shape.experts_per_token = 2;
  return shape;
}

std::vector<Axis> Axes() {
  return {{"tp", AxisSize(4)},
          {"cp", AxisSize(2)},
          {"ep", AxisSize(8)},
          {"pp", AxisSize(3)},
          {"dp", AxisSize(6)}};
}

TEST(TransformerTrafficTest, FollowsTheTable) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<AxisTraffic> traffic,
                               EstimateTransformerTraffic(Axes(), Shape()));
  // x = 2 * 128/2 * 64 * 2 bytes; l M = 12/3 * 5.
  constexpr double kX = 16384;
  constexpr double kRuns = 20;
  const std::vector<std::vector<Transfer>> expected = {
      {{CollectiveKind::kAllReduce, kX, 4 * kRuns}},
      {{CollectiveKind::kAllGather, 2.0 * 2 * 128 * 16 * 2 / 4, 3 * kRuns}},
      {{CollectiveKind::kAllToAll, kX * 2 / 4, 4 * kRuns}},
      {{CollectiveKind::kSendRecv, kX / 4, 10}},
      {{CollectiveKind::kAllReduce, (9600.0 + 4800.0 / 8) / 12 * 2, 1}},
  };
  ASSERT_EQ(traffic.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(traffic[i].axis, Axes()[i]);
    EXPECT_EQ(traffic[i].transfers, expected[i]) << traffic[i].axis.name;
  }
}

TEST(TransformerTrafficTest, ZeroStage3GathersWeightsTwice) {
  TransformerShape shape = Shape();
  shape.zero_stage = 3;
  shape.weight_bytes = 1;
  const std::vector<Axis> axes = {{"dp", AxisSize(6)}};
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<AxisTraffic> traffic,
                               EstimateTransformerTraffic(axes, shape));
  EXPECT_EQ(
      traffic[0].transfers,
      (std::vector<Transfer>{{CollectiveKind::kAllGather, 14400, 2},
                             {CollectiveKind::kReduceScatter, 28800, 1}}));
}

TEST(TransformerTrafficTest, ErrorsListEveryProblem) {
  TransformerShape shape;
  shape.sequence = -1;
  shape.dense_parameters = std::nan("");
  shape.expert_parameters = -1;
  shape.zero_stage = 4;
  const std::vector<Axis> axes = {{"xp", AxisSize(2)}};
  EXPECT_THAT(
      EstimateTransformerTraffic(axes, shape),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("layers is 0; use at least 1"),
                     HasSubstr("hidden is 0"), HasSubstr("sequence is -1"),
                     HasSubstr("dense_parameters is nan"),
                     HasSubstr("expert_parameters is -1"),
                     HasSubstr("zero_stage is 4; use 0 to 3"),
                     HasSubstr("axis \"xp\" has no known traffic"))));
  const std::vector<Axis> bad = {{"tp", AxisSize(0)}};
  EXPECT_THAT(EstimateTransformerTraffic(bad, Shape()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tp")));
}

TEST(TrafficTest, RejectsInvalidAmounts) {
  for (double bad : {-1.0, std::nan(""), HUGE_VAL}) {
    AxisTraffic traffic = {{"tp", AxisSize(2)},
                           {{CollectiveKind::kAllReduce, bad, 1}}};
    EXPECT_THAT(ValidateTraffic(std::vector<AxisTraffic>{traffic}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("axis tp: all_reduce has")));
    traffic.transfers[0] = {CollectiveKind::kSendRecv, 1, bad};
    EXPECT_THAT(ValidateTraffic(std::vector<AxisTraffic>{traffic}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("axis tp: send_recv has 1 bytes")));
  }
  const std::vector<AxisTraffic> twice(2, {{"tp", AxisSize(2)}, {}});
  EXPECT_THAT(ValidateTraffic(twice),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace

}  // namespace tessera::topology
