#include "collectives/groups/host_hierarchy.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

using Found = absl::StatusOr<std::shared_ptr<const Hierarchy>>;

// Runs one rank per named host; "" is the host of this process.
std::vector<Found> FindOn(const std::vector<std::string>& hosts,
                          std::vector<std::unique_ptr<Engine>>& engines) {
  std::vector<Found> found(hosts.size(), nullptr);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < hosts.size(); ++r) {
    ranks.emplace_back([&, r] {
      found[r] = hosts[r].empty()
                     ? HostHierarchy(*engines[r], absl::Seconds(30))
                     : HostHierarchy(*engines[r], hosts[r], absl::Seconds(30));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return found;
}

std::vector<Found> FindOn(const std::vector<std::string>& hosts) {
  auto engines = *CreateInProcessEngines(static_cast<int64_t>(hosts.size()));
  return FindOn(hosts, engines);
}

TEST(HostHierarchyTest, RanksOfAHostAreAGroupWhereverTheyAre) {
  for (const Found& found : FindOn({"b", "a", "b", "c", "a"})) {
    TESSERA_ASSERT_OK(found.status());
    ASSERT_NE(*found, nullptr);
    const Hierarchy& hierarchy = **found;
    ASSERT_EQ(hierarchy.levels(), 1);
    const std::vector<int64_t> want = {0, 1, 0, 2, 1};
    for (size_t r = 0; r < want.size(); ++r) {
      EXPECT_EQ(hierarchy.GroupOf(0, Rank(static_cast<int64_t>(r))), want[r]);
    }
  }
}

TEST(HostHierarchyTest, IsNullWhereNothingTellsRanksApart) {
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"a", "a", "a"},
        {"a", "b", "c"},
        {"a"},
        {"", "", ""}}) {
    for (const Found& found : FindOn(hosts)) {
      EXPECT_THAT(found, IsOkAndHolds(nullptr));
    }
  }
}

// The engine is unchanged, and hierarchical algorithms are available.
TEST(HostHierarchyTest, TheStrategyTakesIt) {
  auto engines = *CreateInProcessEngines(4);
  const std::vector<Found> found = FindOn({"a", "a", "b", "b"}, engines);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < engines.size(); ++r) {
    ranks.emplace_back([&, r] {
      CommunicatorOptions options;
      options.hierarchy = *found[r];
      options.chooser = std::make_shared<StrategyChooser>(
          topology::CommunicationStrategy::kHierarchical);
      auto world = Communicator::Create(std::move(engines[r]), options);
      TESSERA_ASSERT_OK(world.status());
      std::vector<float> values(1000, static_cast<float>(r));
      TESSERA_ASSERT_OK(
          (*world)->AllReduce(Buffer(std::span(values)), Reduction::Sum()));
      EXPECT_THAT(values, ::testing::Each(6.0f));
      Algorithm taken = Algorithm::kEngine;
      for (const auto& [what, totals] : (*world)->Statistics()) {
        taken = what.second;
      }
      EXPECT_EQ(taken, Algorithm::kHierarchical);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

using ::testing::HasSubstr;
using topology::Cluster;
using topology::Device;
using topology::DeviceIndex;
using topology::HostGroup;

Device Cpu(int64_t socket, int64_t numa_node) {
  Device device;
  device.kind = topology::DeviceKind::kCpu;
  device.socket = socket;
  device.numa_node = numa_node;
  return device;
}

Device Gpu(int64_t domain) {
  Device device;
  device.nvlink_domain = domain;
  return device;
}

Cluster OneGroup(int64_t hosts, std::vector<Device> devices,
                 int64_t nvlink_hosts = 1) {
  HostGroup group;
  group.count = hosts;
  group.devices = std::move(devices);
  group.nvlink_hosts = nvlink_hosts;
  return *Cluster::Create({group});
}

TEST(ClusterHierarchyTest, NumaNodesSocketsHosts) {
  const Cluster cluster =
      OneGroup(2, {Cpu(0, 0), Cpu(0, 0), Cpu(0, 1), Cpu(0, 1), Cpu(1, 2),
                   Cpu(1, 2), Cpu(1, 3), Cpu(1, 3)});
  TESSERA_ASSERT_OK_AND_ASSIGN(const Hierarchy hierarchy,
                               HierarchyOf(cluster, 16));
  EXPECT_EQ(hierarchy.Describe(),
            "16 ranks, in 8 groups of 2, in 4 groups of 4, in 2 groups of 8");
}

TEST(ClusterHierarchyTest, LevelsThatTellNothingAreLeftOut) {
  const Cluster cluster =
      OneGroup(2, {Cpu(0, 0), Cpu(0, 0), Cpu(1, 1), Cpu(1, 1)});
  TESSERA_ASSERT_OK_AND_ASSIGN(const Hierarchy hierarchy,
                               HierarchyOf(cluster, 8));
  EXPECT_EQ(hierarchy.Describe(),
            "8 ranks, in 4 groups of 2, in 2 groups of 4");
  const std::vector<DeviceIndex> apart = {DeviceIndex(0), DeviceIndex(2),
                                          DeviceIndex(4), DeviceIndex(6)};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Hierarchy hosts,
                               HierarchyOf(cluster, apart));
  EXPECT_EQ(hosts.Describe(), "4 ranks, in 2 groups of 2");
}

TEST(ClusterHierarchyTest, NvlinkDomainsWithinAndAcrossHosts) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Hierarchy within,
      HierarchyOf(OneGroup(2, {Gpu(0), Gpu(0), Gpu(1), Gpu(1)}), 8));
  EXPECT_EQ(within.Describe(), "8 ranks, in 4 groups of 2, in 2 groups of 4");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Hierarchy racks, HierarchyOf(OneGroup(4, {Gpu(0), Gpu(0)}, 2), 8));
  EXPECT_EQ(racks.Describe(), "8 ranks, in 2 groups of 4");
}

TEST(ClusterHierarchyTest, RefusesMoreRanksThanDevices) {
  const Cluster cluster = OneGroup(1, {Cpu(0, 0)});
  EXPECT_THAT(HierarchyOf(cluster, 2),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("2 ranks on 1 devices")));
  EXPECT_THAT(HierarchyOf(cluster, 0),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const std::vector<DeviceIndex> beyond = {DeviceIndex(1)};
  EXPECT_THAT(HierarchyOf(cluster, beyond),
              StatusIs(absl::StatusCode::kOutOfRange));
}

}  // namespace

}  // namespace tessera::collectives
