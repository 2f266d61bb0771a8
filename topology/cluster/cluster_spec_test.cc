#include "topology/cluster/cluster_spec.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ClusterSpecTest, HostsOfGpus) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               ParseCluster("hosts=16,gpus=8"));
  EXPECT_EQ(cluster.num_hosts(), 16);
  EXPECT_EQ(cluster.num_devices(), 128);
  ASSERT_EQ(cluster.groups().size(), 1u);
  EXPECT_EQ(cluster.groups()[0].nics, 8);
  EXPECT_EQ(cluster.groups()[0].links, GpuLinks());
  EXPECT_THAT(cluster.HostName(HostIndex(15)), IsOkAndHolds("host15"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Link link, cluster.LinkBetween(DeviceIndex(0), DeviceIndex(7)));
  EXPECT_EQ(link.level, LinkLevel::kNvlink);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      link, cluster.LinkBetween(DeviceIndex(7), DeviceIndex(8)));
  EXPECT_EQ(link.level, LinkLevel::kNetwork);
}

TEST(ClusterSpecTest, HostsOfCpusHaveNoNvlink) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               ParseCluster(" hosts = 2 , cpus = 4 "));
  EXPECT_EQ(cluster.num_devices(), 8);
  EXPECT_EQ(cluster.groups()[0].nics, 1);
  EXPECT_EQ(cluster.groups()[0].links, CpuLinks());
  TESSERA_ASSERT_OK_AND_ASSIGN(const Device device,
                               cluster.DeviceAt(DeviceIndex(3)));
  EXPECT_EQ(device.kind, DeviceKind::kCpu);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Link link, cluster.LinkBetween(DeviceIndex(0), DeviceIndex(3)));
  EXPECT_EQ(link.level, LinkLevel::kNumaNode);
  EXPECT_EQ(link.speed.kind, LinkKind::kSharedMemory);
}

TEST(ClusterSpecTest, EveryKeyHasItsEffect) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Cluster cluster,
      ParseCluster("hosts=4,gpus=8,sockets=2,numa=2,memory=80GB,nvlink=900GB,"
                   "numa_node=64GB,socket=32GB,host=16GB,network=400Gb,nics=2,"
                   "nvlink_hosts=2,name=rack,nvlink_latency=1us,"
                   "numa_node_latency=2us,socket_latency=3us,host_latency=4us,"
                   "network_latency=5us"));
  const HostGroup& group = cluster.groups()[0];
  EXPECT_EQ(group.count, 4);
  EXPECT_EQ(group.name, "rack");
  EXPECT_EQ(group.nics, 2);
  EXPECT_EQ(group.nvlink_hosts, 2);
  const std::map<LinkLevel, std::pair<double, double>> speeds = {
      {LinkLevel::kNvlink, {1e-6, 900e9}}, {LinkLevel::kNumaNode, {2e-6, 64e9}},
      {LinkLevel::kSocket, {3e-6, 32e9}},  {LinkLevel::kHost, {4e-6, 16e9}},
      {LinkLevel::kNetwork, {5e-6, 50e9}},
  };
  for (const auto& [level, speed] : speeds) {
    EXPECT_EQ(LinkAt(group.links, level).latency, speed.first) << level;
    EXPECT_EQ(LinkAt(group.links, level).bandwidth, speed.second) << level;
  }
  ASSERT_EQ(group.devices.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(group.devices[i].numa_node, static_cast<int64_t>(i / 2));
    EXPECT_EQ(group.devices[i].socket, static_cast<int64_t>(i / 4));
    EXPECT_EQ(group.devices[i].memory_bytes, 80'000'000'000);
    EXPECT_EQ(group.devices[i].nvlink_domain, 0);
  }
}

TEST(ClusterSpecTest, DevicesAreSpreadAsEvenlyAsTheyGo) {
  for (int64_t cpus = 1; cpus <= 12; ++cpus) {
    for (int64_t sockets = 1; sockets <= 4; ++sockets) {
      for (int64_t numa = 1; numa <= 3; ++numa) {
        TESSERA_ASSERT_OK_AND_ASSIGN(
            const Cluster cluster,
            ParseCluster(absl::StrCat("cpus=", cpus, ",sockets=", sockets,
                                      ",numa=", numa)));
        std::vector<int64_t> on_socket(static_cast<size_t>(sockets));
        std::vector<int64_t> on_node(static_cast<size_t>(sockets * numa));
        for (const Device& device : cluster.groups()[0].devices) {
          ++on_socket[static_cast<size_t>(device.socket)];
          ++on_node[static_cast<size_t>(device.numa_node)];
          EXPECT_EQ(device.numa_node / numa, device.socket);
        }
        EXPECT_EQ(cluster.num_devices(), cpus);
        EXPECT_LE(on_socket.front() - on_socket.back(), 1);
        for (int64_t s = 0; s < sockets; ++s) {
          EXPECT_LE(on_node[static_cast<size_t>(s * numa)] -
                        on_node[static_cast<size_t>(s * numa + numa - 1)],
                    1);
        }
      }
    }
  }
}

TEST(ClusterSpecTest, NvlinkNone) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               ParseCluster("gpus=4,sockets=2,nvlink=none"));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Link link, cluster.LinkBetween(DeviceIndex(0), DeviceIndex(1)));
  EXPECT_EQ(link.level, LinkLevel::kNumaNode);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      link, cluster.LinkBetween(DeviceIndex(1), DeviceIndex(2)));
  EXPECT_EQ(link.level, LinkLevel::kHost);
}

TEST(ClusterSpecTest, RefusesWithTheItemAndWhatIsAllowed) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"", {"is empty"}},
      {" ", {"is empty"}},
      {"hosts=2,gpus=8,", {"item \"\" is not key=value"}},
      {"hosts", {"item \"hosts\" is not key=value"}},
      {"hosts=,gpus=8", {"item \"hosts=\""}},
      {"=2", {"item \"=2\""}},
      {"host5=2,gpus=8",
       {"unknown key \"host5\"", "hosts, gpus, cpus", "network_latency"}},
      {"gpus=8,gpus=8", {"key \"gpus\" is given twice"}},
      {"hosts=2", {"neither gpus nor cpus"}},
      {"gpus=1,cpus=1", {"both gpus and cpus"}},
      {"gpus=0", {"gpus=\"0\" is not a whole number from 1 to 4096"}},
      {"gpus=-1", {"gpus=\"-1\""}},
      {"gpus=4097", {"gpus=\"4097\""}},
      {"gpus=8,hosts=99999999999999999999", {"hosts=\"99999999999999999999\""}},
      {"gpus=8,hosts=1.5", {"hosts=\"1.5\""}},
      {"gpus=8,sockets=0", {"sockets=\"0\""}},
      {"gpus=8,nics=two", {"nics=\"two\"", "1 to 1024"}},
      {"gpus=8,network=fast", {"network: bandwidth \"fast\"", "400Gb/s"}},
      {"gpus=8,network=none", {"network: bandwidth \"none\""}},
      {"gpus=8,nvlink=0", {"nvlink: bandwidth \"0\""}},
      {"gpus=8,host_latency=-1us", {"host_latency: latency \"-1us\""}},
      {"gpus=8,memory=lots", {"memory: byte size \"lots\""}},
      {"gpus=8,name=a b", {"name is not a host name"}},
      {"gpus=4,hosts=36,nvlink_hosts=5", {"nvlink_hosts is 5", "36 hosts"}},
      {"gpus=4096,hosts=1048576", {"devices; use at most 67108864"}},
      {std::string(5000, 'x'), {"5000 characters; use at most 4096"}},
  };
  for (const auto& [spec, parts] : cases) {
    const auto result = ParseCluster(spec);
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument))
        << spec.substr(0, 80);
    for (const std::string& part : parts) {
      EXPECT_THAT(result.status().message(), HasSubstr(part)) << spec;
    }
    EXPECT_LT(result.status().message().size(), 600u) << spec;
  }
}

TEST(ClusterSpecTest, RefusalsShowAnExample) {
  EXPECT_THAT(ParseCluster("nodes=2"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("cluster spec: "),
                             HasSubstr("for example hosts=16,gpus=8"))));
}

}  // namespace
}  // namespace tessera::topology
