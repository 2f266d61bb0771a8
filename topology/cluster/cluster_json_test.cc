#include "topology/cluster/cluster_json.h"

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/cluster/cluster_spec.h"

namespace tessera::topology {
namespace {

using ::testing::HasSubstr;

std::string ReadmeExample() {
  std::ifstream file("topology/cluster/README.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const size_t begin = all.find("```json\n");
  const size_t end = all.find("```\n", begin + 8);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return all.substr(begin + 8, end - begin - 8);
}

TEST(ClusterJsonTest, TheReadmesExampleIsTheClusterItDescribes) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               ClusterFromJson(ReadmeExample()));
  EXPECT_EQ(cluster.num_hosts(), 3);
  EXPECT_EQ(cluster.num_devices(), 32);
  EXPECT_THAT(cluster.HostName(HostIndex(1)), IsOkAndHolds("hgx1"));
  EXPECT_THAT(cluster.HostName(HostIndex(2)), IsOkAndHolds("login"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Device gpu,
                               cluster.DeviceAt(DeviceIndex(12)));
  Device expected;
  expected.model = "H100";
  expected.memory_bytes = int64_t{80} << 30;
  expected.socket = 1;
  expected.numa_node = 1;
  expected.nvlink_domain = 0;
  EXPECT_EQ(gpu, expected);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Link link, cluster.LinkBetween(DeviceIndex(0), DeviceIndex(8)));
  EXPECT_EQ(link.speed, (LinkSpeed{LinkKind::kEthernet, 2e-5, 25e9}));
  // Left out, so the defaults of each kind of host.
  EXPECT_EQ(LinkAt(cluster.groups()[0].links, LinkLevel::kHost),
            LinkAt(GpuLinks(), LinkLevel::kHost));
  EXPECT_EQ(cluster.groups()[1].links, CpuLinks());
  EXPECT_EQ(cluster.groups()[1].nics, 1);
}

std::vector<HostGroup> RandomGroups(std::mt19937_64& random) {
  std::vector<HostGroup> groups(1 + random() % 3);
  std::uniform_real_distribution<double> exponent(-300, 300);
  for (size_t g = 0; g < groups.size(); ++g) {
    HostGroup& group = groups[g];
    group.name = absl::StrCat("h", g, "-");
    group.nvlink_hosts = 1 + static_cast<int64_t>(random() % 5);
    group.count =
        group.nvlink_hosts * (1 + static_cast<int64_t>(random() % 1000));
    group.nics = 1 + static_cast<int64_t>(random() % kMaxNics);
    for (LinkSpeed& link : group.links) {
      link.kind = static_cast<LinkKind>(random() % kLinkKinds);
      link.latency = std::pow(10, exponent(random));
      link.bandwidth = std::pow(10, exponent(random));
    }
    for (size_t n = 1 + random() % 4; n > 0; --n) {
      Device device;
      device.kind = random() % 2 ? DeviceKind::kGpu : DeviceKind::kCpu;
      if (random() % 2) device.model = "A \"quoted\" \\ model";
      if (random() % 2) device.bus_id = "0000:18:00.0";
      device.memory_bytes = static_cast<int64_t>(random() >> 4);
      device.socket = static_cast<int64_t>(random() % 4);
      device.numa_node = static_cast<int64_t>(random() % kMaxDomain);
      device.nvlink_domain = static_cast<int64_t>(random() % 3) - 1;
      group.devices.insert(group.devices.end(), 1 + random() % 4, device);
    }
  }
  return groups;
}

TEST(ClusterJsonTest, WhatIsWrittenReadsBackBitForBit) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                                 Cluster::Create(RandomGroups(random)));
    const std::string text = ClusterToJson(cluster);
    ASSERT_THAT(ClusterFromJson(text), IsOkAndHolds(cluster)) << text;
  }
}

TEST(ClusterJsonTest, WritesEqualDevicesOnce) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                               ParseCluster("hosts=1000,gpus=8,sockets=2"));
  const std::string text = ClusterToJson(cluster);
  EXPECT_LT(text.size(), 2000u);
  EXPECT_THAT(text, HasSubstr("\"count\": 4"));
  EXPECT_EQ(text.back(), '\n');
}

TEST(ClusterJsonTest, ProblemsAreListedByPath) {
  constexpr char kText[] = R"({
    "format": "other", "version": 2, "extra": 1,
    "hosts": [
      {"name": "a", "devices": [{}]},
      {"name": 7, "count": 0, "nics": 1025, "racks": 1,
       "devices": [{"kind": "tpu"}, {"numa_node": "0", "socket": -1}, 3],
       "links": {"nvlink": {"bandwidth": -1, "latency": "x", "kind": "wire"},
                 "host": 5, "isl": {}}},
      {"devices": {}},
      "b"
    ]})";
  const absl::Status status = ClusterFromJson(kText).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  for (const char* part :
       {"cluster JSON has 19 problems: ",
        "format is \"other\"; use \"tessera-cluster\"",
        "version is 2; use a whole number from 1 to 1",
        "extra is an unknown key; the keys are format, version, hosts",
        "hosts[1].name is 7; use a text",
        "hosts[1].count is 0; use a whole number from 1 to 1048576",
        "hosts[1].nics is 1025",
        "hosts[1].racks is an unknown key; the keys are name, count",
        "hosts[1].devices[0].kind is \"tpu\"; use \"gpu\" or \"cpu\"",
        "hosts[1].devices[1].numa_node is \"0\"; use a whole number",
        "hosts[1].devices[1].socket is -1",
        "hosts[1].devices[2] is 3; use an object",
        "hosts[1].links.nvlink.bandwidth is -1; use a number",
        "hosts[1].links.nvlink.latency is \"x\"",
        "hosts[1].links.nvlink.kind is \"wire\"; use one of memory, nvlink",
        "hosts[1].links.host is 5; use an object",
        "hosts[1].links.isl is an unknown key; the keys are device, nvlink",
        "hosts[2].name is missing; give a text",
        "hosts[2].devices is an object; use an array",
        "hosts[3] is \"b\"; use an object"}) {
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
}

TEST(ClusterJsonTest, RefusesWhatIsNoClusterAtAll) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "line 1, column 1"},
      {"[]", "the text is an array; use an object"},
      {"{}", "hosts is missing"},
      {R"({"hosts": []})", "the cluster has no host"},
      {R"({"hosts": [{"name": "a"}]})", "hosts[0].devices is empty"},
      {R"({"hosts": [{"name": "a", "devices": []}]})", "devices is empty"},
      {R"({"hosts": [{"name": "a", "devices": [{}]},
                     {"name": "a", "devices": [{}]}]})",
       "hosts[1].name \"a\" names a host that hosts[0]"},
      {R"({"hosts": [{"name": "a", "name": "b", "devices": [{}]}]})",
       "key \"name\" comes twice"},
      {R"({"hosts": [{"name": "a", "devices": [{"count": 4096}, {}]}]})",
       "hosts[0].devices has 4097 devices"},
      {R"({"hosts": [{"name": "a", "devices": [{"count": 1e3}]}]})",
       "hosts[0].devices[0].count is 1000.0"},
      {R"({"hosts": [{"name": "a", "devices": [{"model": "é"}]}]})",
       "hosts[0].devices[0].model has 2 characters, some not printable"},
      {R"({"hosts": [{"name": "a", "devices": [{}],
           "links": {"host": {"bandwidth": 0}}}]})",
       "hosts[0].links.host.bandwidth is 0 B/s"},
      {std::string(17, '[') + std::string(17, ']'), "nested more than 16 deep"},
  };
  for (const auto& [text, reason] : cases) {
    EXPECT_THAT(ClusterFromJson(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(reason)))
        << text;
  }
}

}  // namespace
}  // namespace tessera::topology
