#include "topology/placement/placement.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/cluster/cluster_file.h"
#include "topology/mesh.h"
#include "topology/placement/traffic.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string OrderOf(const Placement& placement) {
  return FormatAxes(placement.order);
}

AxisTraffic AllReduce(std::string name, int64_t size, double bytes,
                      double times = 1) {
  return {{std::move(name), AxisSize(size)},
          {{CollectiveKind::kAllReduce, bytes, times}}};
}

TransformerShape Llama70b() {
  TransformerShape shape;
  shape.layers = 80;
  shape.hidden = 8192;
  shape.kv_hidden = 1024;
  shape.sequence = 8192;
  shape.micro_batches = 16;
  shape.dense_parameters = 70e9;
  return shape;
}

TEST(PlacementTest, TensorParallelismStaysWithinTheHost) {
  const Cluster cluster = *ParseCluster("hosts=16,gpus=8");
  const auto axes = *ParseAxes("dp4,pp4,tp8");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto traffic,
                               EstimateTransformerTraffic(axes, Llama70b()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Placement placement,
                               FindPlacement(traffic, cluster));
  EXPECT_EQ(placement.order[0].name, "tp");
  EXPECT_EQ(placement.axes[0].worst_level, LinkLevel::kNvlink);
  EXPECT_EQ(placement.axes[0].groups_at_level[1], 16);
  EXPECT_EQ(placement.axes[0].network_bytes, 0);
  EXPECT_EQ(placement.axes[1].worst_level, LinkLevel::kNetwork);
  EXPECT_GT(placement.busiest_host_bytes, 0);
  EXPECT_THAT(placement.warnings, IsEmpty());
  TESSERA_EXPECT_OK(Mesh::Create(placement.order));
}

TEST(PlacementTest, AnNvlinkRackIsOneDomain) {
  const Cluster cluster =
      *ParseCluster("hosts=36,gpus=4,nvlink_hosts=18,nvlink=900GB");
  const std::vector<AxisTraffic> traffic = {AllReduce("dp", 2, 1e9),
                                            AllReduce("tp", 72, 1e9, 100)};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Placement placement,
                               FindPlacement(traffic, cluster));
  EXPECT_EQ(OrderOf(placement), "tp72,dp2");
  EXPECT_EQ(placement.axes[0].worst_level, LinkLevel::kNvlink);
  EXPECT_THAT(placement.warnings, IsEmpty());
}

TEST(PlacementTest, WarnsIfTensorGroupSpansHosts) {
  const Cluster cluster = *ParseCluster("hosts=4,gpus=4");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Placement placement,
      FindPlacement(std::vector<AxisTraffic>{AllReduce("tp", 8, 1e9),
                                             AllReduce("dp", 2, 1)},
                    cluster));
  EXPECT_THAT(placement.warnings,
              ElementsAre(AllOf(
                  HasSubstr("axis tp: 2 of 2 groups cross the network"),
                  HasSubstr("ranks 0, 1, 2, 3, ... on hosts host0, host1"),
                  HasSubstr("use tp of at most 4"))));
  // It would fit, but another axis was given the fast links.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      placement,
      EvaluatePlacement(std::vector<AxisTraffic>{AllReduce("dp", 4, 1),
                                                 AllReduce("tp", 4, 1)},
                        cluster));
  EXPECT_THAT(placement.warnings,
              ElementsAre(HasSubstr("reduce the axes that vary faster")));
}

TEST(PlacementTest, WarnsIfSizesDoNotDivideHost) {
  const Cluster cluster = *ParseCluster("hosts=4,gpus=6");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Placement placement,
      EvaluatePlacement(std::vector<AxisTraffic>{AllReduce("cp", 4, 1e9),
                                                 AllReduce("dp", 6, 1)},
                        cluster));
  EXPECT_THAT(
      placement.warnings,
      Contains(AllOf(HasSubstr("axis cp: 2 of 6 groups cross the network"),
                     HasSubstr("ranks 4, 5, 6, 7 on hosts host0, host1"),
                     HasSubstr("use cp of a size that divides the 6"))));
}

TEST(PlacementTest, WarnsIfFasterAxesMakeGroupsCrossHosts) {
  std::vector<HostGroup> groups(2);
  groups[0].name = "six";
  groups[0].devices.resize(6);
  groups[1].name = "four";
  groups[1].devices.resize(4);
  groups[1].count = 2;
  const Cluster cluster = *Cluster::Create(groups);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Placement placement,
      EvaluatePlacement(std::vector<AxisTraffic>{AllReduce("tp", 2, 1e9),
                                                 AllReduce("cp", 2, 1)},
                        cluster));
  EXPECT_EQ(placement.axes[1].worst_level, LinkLevel::kNumaNode);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Placement torn,
      EvaluatePlacement(std::vector<AxisTraffic>{AllReduce("tp", 2, 1e9),
                                                 AllReduce("cp", 2, 1),
                                                 AllReduce("dp", 3, 1)},
                        cluster));
  EXPECT_THAT(
      torn.warnings,
      Contains(AllOf(HasSubstr("axis cp: 4 of 6 groups cross the network"),
                     HasSubstr("multiply to a divisor of every host's number "
                               "of devices, not to 4"))));
}

TEST(PlacementTest, WarnsOfIdleDevicesAndUnevenHosts) {
  std::vector<HostGroup> groups(2);
  groups[0].name = "big";
  groups[0].count = 2;
  groups[0].devices.resize(4);
  groups[1].name = "small";
  groups[1].devices.resize(3);
  const Cluster cluster = *Cluster::Create(groups);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Placement placement,
      FindPlacement(std::vector<AxisTraffic>{AllReduce("dp", 10, 1)}, cluster));
  EXPECT_THAT(
      placement.warnings,
      ElementsAre(AllOf(HasSubstr("10 ranks and the cluster 11 devices"),
                        HasSubstr("the last 1 stay idle")),
                  AllOf(HasSubstr("host big0 has 4 devices"),
                        HasSubstr("host small has 3"))));
}

TEST(PlacementTest, RejectsBadAxesTrafficAndTooManyRanks) {
  const Cluster cluster = *ParseCluster("hosts=2,gpus=4");
  const std::vector<std::pair<std::vector<AxisTraffic>, std::string>> cases = {
      {{AllReduce("dp", 3, 1), AllReduce("tp", 3, 1)},
       "the mesh dp3,tp3 has 9 ranks, but the cluster has 8 devices"},
      {{AllReduce("dp", 0, 1)}, "dp"},
      {{AllReduce("dp", 2, 1), AllReduce("dp", 2, 1)}, "dp"},
      {{AllReduce("dp", 2, -1)}, "axis dp: all_reduce has -1 bytes"},
      {{AllReduce("dp", int64_t{1} << 40, 1), AllReduce("tp", 1 << 30, 1)},
       "2^63"},
  };
  for (const auto& [traffic, reason] : cases) {
    const auto refusal =
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(reason));
    EXPECT_THAT(FindPlacement(traffic, cluster), refusal);
    EXPECT_THAT(EvaluatePlacement(traffic, cluster), refusal);
  }
}

TEST(PlacementTest, AWorldOfOneNeedsNoAxis) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Placement placement,
                               FindPlacement({}, *ParseCluster("gpus=1")));
  EXPECT_THAT(placement.order, IsEmpty());
  EXPECT_EQ(placement.seconds_per_step, 0);
  EXPECT_THAT(placement.warnings, IsEmpty());
}

TEST(PlacementTest, PlacesSixteenAxes) {
  std::vector<AxisTraffic> traffic;
  for (int i = 0; i < 16; ++i) {
    traffic.push_back(
        AllReduce(std::string(1, static_cast<char>('a' + i)), 2, 1e6, i + 1));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Placement placement,
      FindPlacement(traffic, *ParseCluster("hosts=8192,gpus=8")));
  // The three axes with the most traffic use the links within a host.
  EXPECT_EQ(OrderOf(placement).substr(0, 8), "n2,o2,p2");
}

TEST(PlacementTest, PlacesMillionRanksLikeFew) {
  const Cluster cluster = *ParseCluster("hosts=125000,gpus=8");
  const auto axes = *ParseAxes("dp625,pp50,cp4,tp8");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto traffic,
                               EstimateTransformerTraffic(axes, Llama70b()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Placement placement,
                               FindPlacement(traffic, cluster));
  EXPECT_EQ(placement.world_size, 1'000'000);
  EXPECT_EQ(placement.order[0].name, "tp");
  EXPECT_EQ(placement.axes[0].groups_at_level[1], 125'000);
  EXPECT_THAT(placement.warnings, IsEmpty());
}

TEST(PlacementTest, DescribesEveryAxisAndWarning) {
  const Cluster cluster = *ParseCluster("hosts=4,gpus=4");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Placement placement,
      FindPlacement(std::vector<AxisTraffic>{AllReduce("tp", 8, 1e9),
                                             AllReduce("dp", 2, 1)},
                    cluster));
  const std::string text = Describe(placement);
  EXPECT_THAT(
      text, AllOf(HasSubstr("16 ranks on 16 devices"), HasSubstr("axis"),
                  HasSubstr("2 network"), HasSubstr("warning: axis tp: 2 of 2"),
                  HasSubstr("1.75 GB"), Not(HasSubstr("nan"))));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
}

}  // namespace
}  // namespace tessera::topology
