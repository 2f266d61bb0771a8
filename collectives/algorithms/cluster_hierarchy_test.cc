#include "collectives/algorithms/cluster_hierarchy.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

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
