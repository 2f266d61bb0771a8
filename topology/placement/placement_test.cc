#include "topology/placement/placement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/cluster/cluster_spec.h"
#include "topology/mesh.h"
#include "topology/placement/cost/reference_cost.h"
#include "topology/placement/transformer_traffic.h"

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

std::vector<AxisTraffic> RandomTraffic(std::mt19937_64& random,
                                       int64_t devices) {
  std::vector<AxisTraffic> traffic;
  int64_t world = 1;
  for (size_t i = 0; i < 1 + random() % 5; ++i) {
    const int64_t size = 1 + static_cast<int64_t>(random() % 6);
    if (world * size > devices) break;
    world *= size;
    AxisTraffic axis;
    axis.axis = {std::string(1, static_cast<char>('a' + i)), AxisSize(size)};
    for (size_t n = random() % 3; n > 0; --n) {
      axis.transfers.push_back(
          {static_cast<CollectiveKind>(random() % kCollectiveKinds),
           std::exp2(static_cast<double>(random() % 8) * 4),
           static_cast<double>(random() % 4)});
    }
    traffic.push_back(std::move(axis));
  }
  return traffic;
}

Cluster RandomCluster(std::mt19937_64& random, bool even) {
  std::vector<HostGroup> groups(even ? 1 : 1 + random() % 3);
  for (size_t g = 0; g < groups.size(); ++g) {
    HostGroup& group = groups[g];
    group.name = absl::StrCat("g", g, "-");
    group.count = 1 + static_cast<int64_t>(random() % 8);
    group.devices.resize(1 + random() % 9);
    group.nics = 1 + static_cast<int64_t>(random() % 8);
    for (size_t i = 0; i < group.devices.size(); ++i) {
      group.devices[i].socket = static_cast<int64_t>(i) / 4;
      group.devices[i].nvlink_domain = random() % 2 ? 0 : Device::kNoNvlink;
    }
  }
  return *Cluster::Create(std::move(groups));
}

// Every order of the axes, each a list of places, in lexicographic order.
std::vector<std::vector<size_t>> AllOrders(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<size_t>> orders;
  do {
    orders.push_back(order);
  } while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

double ReferenceSeconds(const std::vector<AxisTraffic>& traffic,
                        const std::vector<size_t>& order,
                        const Cluster& cluster) {
  int64_t world = 1;
  for (const AxisTraffic& axis : traffic) world *= axis.axis.size.value();
  double seconds = 0;
  int64_t stride = 1;
  for (size_t place : order) {
    const int64_t size = traffic[place].axis.size.value();
    const ReferenceCost cost(cluster, world, size, stride);
    for (const Transfer& transfer : traffic[place].transfers) {
      seconds += cost.Seconds(transfer);
    }
    stride *= size;
  }
  return seconds;
}

TEST(PlacementTest, CostsWhatTheBestOfAllOrdersCosts) {
  for (const bool even : {true, false}) {
    std::mt19937_64 random(even ? 1 : 2);
    for (int round = 0; round < 1000; ++round) {
      const Cluster cluster = RandomCluster(random, even);
      const auto traffic = RandomTraffic(random, cluster.num_devices());
      double best = HUGE_VAL;
      for (const auto& order : AllOrders(traffic.size())) {
        best = std::min(best, ReferenceSeconds(traffic, order, cluster));
      }
      TESSERA_ASSERT_OK_AND_ASSIGN(const Placement placement,
                                   FindPlacement(traffic, cluster));
      ASSERT_NEAR(placement.seconds_per_step, best, 1e-9 * best + 1e-11)
          << "round " << round << " " << OrderOf(placement);
    }
  }
}

TEST(PlacementTest, OfEqualOrdersTheFirstIsTaken) {
  std::mt19937_64 random(3);
  int ties = 0;
  for (int round = 0; round < 200; ++round) {
    const Cluster cluster = RandomCluster(random, true);
    auto traffic = RandomTraffic(random, cluster.num_devices());
    // Alike axes make ties.
    for (AxisTraffic& axis : traffic) {
      if (random() % 2) axis.transfers.clear();
    }
    double best = HUGE_VAL;
    std::vector<Axis> expected;
    int equal = 0;
    for (const auto& order : AllOrders(traffic.size())) {
      std::vector<AxisTraffic> ordered;
      for (size_t place : order) ordered.push_back(traffic[place]);
      TESSERA_ASSERT_OK_AND_ASSIGN(const Placement placement,
                                   EvaluatePlacement(ordered, cluster));
      double picoseconds = 0;
      for (const AxisPlacement& axis : placement.axes) {
        picoseconds += std::round(axis.seconds_per_step * 1e12);
      }
      equal = picoseconds == best ? equal + 1 : picoseconds < best ? 1 : equal;
      if (picoseconds < best) {
        best = picoseconds;
        expected = placement.order;
      }
    }
    ties += equal > 1 ? 1 : 0;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Placement placement,
                                 FindPlacement(traffic, cluster));
    ASSERT_EQ(placement.order, expected) << "round " << round;
  }
  EXPECT_GT(ties, 50);
}

TEST(PlacementTest, ReportsWhatAWalkOverAllGroupsFinds) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    const Cluster cluster = RandomCluster(random, round % 2 == 0);
    const auto traffic = RandomTraffic(random, cluster.num_devices());
    TESSERA_ASSERT_OK_AND_ASSIGN(const Placement placement,
                                 EvaluatePlacement(traffic, cluster));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                                 Mesh::Create(placement.order));
    double seconds = 0;
    for (size_t i = 0; i < traffic.size(); ++i) {
      const AxisPlacement& axis = placement.axes[i];
      std::array<int64_t, kLinkLevels> levels = {};
      std::vector<double> sent(static_cast<size_t>(cluster.num_hosts()));
      for (const auto& group : mesh.GroupsAlong(axis.axis.name)->All()) {
        LinkLevel worst = LinkLevel::kDevice;
        const size_t n = group.size();
        for (size_t a = 0; a < n; ++a) {
          const DeviceIndex from(group[a].value());
          const auto level_to = [&](size_t b) {
            return cluster.LinkBetween(from, DeviceIndex(group[b].value()))
                ->level;
          };
          double& host =
              sent[static_cast<size_t>(cluster.HostOf(from)->value())];
          worst = std::max(worst, level_to((a + 1) % n));
          for (const Transfer& transfer : traffic[i].transfers) {
            const double part = transfer.bytes * transfer.times / n;
            switch (transfer.kind) {
              case CollectiveKind::kAllToAll:
                for (size_t b = 0; b < n; ++b) {
                  if (level_to(b) == LinkLevel::kNetwork) host += part;
                }
                break;
              case CollectiveKind::kSendRecv:
                if (a + 1 < n && level_to(a + 1) == LinkLevel::kNetwork) {
                  host += part * n;
                }
                break;
              default:
                if (level_to((a + 1) % n) == LinkLevel::kNetwork) {
                  host += part * (n - 1) *
                          (transfer.kind == CollectiveKind::kAllReduce ? 2 : 1);
                }
            }
          }
        }
        ++levels[static_cast<size_t>(worst)];
      }
      ASSERT_EQ(axis.groups_at_level, levels) << "round " << round;
      const double all = std::accumulate(sent.begin(), sent.end(), 0.0);
      const double most = *std::max_element(sent.begin(), sent.end());
      ASSERT_NEAR(axis.network_bytes, all, 1e-9 * all);
      ASSERT_NEAR(axis.busiest_host_bytes, most, 1e-9 * most);
      size_t worst = kLinkLevels - 1;
      while (worst > 0 && levels[worst] == 0) --worst;
      EXPECT_EQ(axis.worst_level, static_cast<LinkLevel>(worst));
      seconds += axis.seconds_per_step;
    }
    EXPECT_DOUBLE_EQ(placement.seconds_per_step, seconds);
  }
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

TEST(PlacementTest, WarnsWhereATensorGroupSpansHosts) {
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
  // It would fit, but something else was given the fast links.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      placement,
      EvaluatePlacement(std::vector<AxisTraffic>{AllReduce("dp", 4, 1),
                                                 AllReduce("tp", 4, 1)},
                        cluster));
  EXPECT_THAT(placement.warnings,
              ElementsAre(HasSubstr("lessen the axes that vary faster")));
}

TEST(PlacementTest, WarnsWhereSizesDoNotDivideTheHost) {
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

TEST(PlacementTest, WarnsWhereTheFasterAxesMakeGroupsCrossSomeHosts) {
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

TEST(PlacementTest, RefusesBadAxesTrafficAndTooManyRanks) {
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
  // The three axes with the most traffic have the links within a host.
  EXPECT_EQ(OrderOf(placement).substr(0, 8), "n2,o2,p2");
}

TEST(PlacementTest, AMillionRanksArePlacedAsAFewAre) {
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
