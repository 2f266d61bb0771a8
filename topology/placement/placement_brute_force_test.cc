// Compares the chosen order, its cost and its report with all orders and a walk
// over all groups.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/mesh.h"
#include "topology/placement/placement.h"
#include "topology/placement/testing/reference_cost.h"

namespace tessera::topology {
namespace {

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

TEST(PlacementBruteForceTest, MatchesBestOfAllOrders) {
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
          << "round " << round << " " << FormatAxes(placement.order);
    }
  }
}

TEST(PlacementBruteForceTest, ChoosesFirstOfEqualOrders) {
  std::mt19937_64 random(3);
  int ties = 0;
  for (int round = 0; round < 200; ++round) {
    const Cluster cluster = RandomCluster(random, true);
    auto traffic = RandomTraffic(random, cluster.num_devices());
    // Equal axes produce ties.
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

// The links that one axis's groups use, found by visiting every member.
struct WalkedAxis {
  std::array<int64_t, kLinkLevels> groups_at_level = {};
  std::vector<double> host_bytes;  // Sent over the network by each host.
};

// The bytes that member `a` sends over the network in a transfer; `crosses(b)`
// returns true if member b of its n is on another host.
template <typename Crosses>
double NetworkBytes(const Transfer& transfer, size_t a, size_t n,
                    const Crosses& crosses) {
  const double part = transfer.bytes * transfer.times / n;
  switch (transfer.kind) {
    case CollectiveKind::kAllToAll: {
      double bytes = 0;
      for (size_t b = 0; b < n; ++b) bytes += crosses(b) ? part : 0;
      return bytes;
    }
    case CollectiveKind::kSendRecv:
      return a + 1 < n && crosses(a + 1) ? part * n : 0;
    default:
      return crosses((a + 1) % n)
                 ? part * (n - 1) *
                       (transfer.kind == CollectiveKind::kAllReduce ? 2 : 1)
                 : 0;
  }
}

WalkedAxis Walk(const Mesh& mesh, const AxisTraffic& traffic,
                const Cluster& cluster) {
  WalkedAxis walked;
  walked.host_bytes.resize(static_cast<size_t>(cluster.num_hosts()));
  for (const auto& group : mesh.GroupsAlong(traffic.axis.name)->All()) {
    LinkLevel worst = LinkLevel::kDevice;
    const size_t n = group.size();
    for (size_t a = 0; a < n; ++a) {
      const DeviceIndex from(group[a].value());
      const auto level_to = [&](size_t b) {
        return cluster.LinkBetween(from, DeviceIndex(group[b].value()))->level;
      };
      const auto crosses = [&](size_t b) {
        return level_to(b) == LinkLevel::kNetwork;
      };
      worst = std::max(worst, level_to((a + 1) % n));
      const auto host = static_cast<size_t>(cluster.HostOf(from)->value());
      for (const Transfer& transfer : traffic.transfers) {
        walked.host_bytes[host] += NetworkBytes(transfer, a, n, crosses);
      }
    }
    ++walked.groups_at_level[static_cast<size_t>(worst)];
  }
  return walked;
}

void ExpectReported(const AxisPlacement& axis, const WalkedAxis& walked) {
  EXPECT_EQ(axis.groups_at_level, walked.groups_at_level);
  const std::vector<double>& sent = walked.host_bytes;
  const double all = std::accumulate(sent.begin(), sent.end(), 0.0);
  const double most = *std::max_element(sent.begin(), sent.end());
  EXPECT_NEAR(axis.network_bytes, all, 1e-9 * all);
  EXPECT_NEAR(axis.busiest_host_bytes, most, 1e-9 * most);
  size_t worst = kLinkLevels - 1;
  while (worst > 0 && walked.groups_at_level[worst] == 0) --worst;
  EXPECT_EQ(axis.worst_level, static_cast<LinkLevel>(worst));
}

TEST(PlacementBruteForceTest, ReportMatchesEnumeration) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const Cluster cluster = RandomCluster(random, round % 2 == 0);
    const auto traffic = RandomTraffic(random, cluster.num_devices());
    TESSERA_ASSERT_OK_AND_ASSIGN(const Placement placement,
                                 EvaluatePlacement(traffic, cluster));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                                 Mesh::Create(placement.order));
    double seconds = 0;
    for (size_t i = 0; i < traffic.size(); ++i) {
      ASSERT_EQ(placement.axes[i].axis, traffic[i].axis);
      ExpectReported(placement.axes[i], Walk(mesh, traffic[i], cluster));
      seconds += placement.axes[i].seconds_per_step;
    }
    EXPECT_DOUBLE_EQ(placement.seconds_per_step, seconds);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::topology
