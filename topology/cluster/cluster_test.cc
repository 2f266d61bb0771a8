#include "topology/cluster/cluster.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::topology {

namespace {

using ::testing::HasSubstr;

TEST(LinkTest, NamesAreDistinctAndReadBack) {
  std::set<std::string_view> names;
  for (LinkLevel level : kAllLinkLevels) {
    names.insert(LinkLevelName(level));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kLinkLevels));
  names.clear();
  for (int i = 0; i < kLinkKinds; ++i) {
    const auto kind = static_cast<LinkKind>(i);
    names.insert(LinkKindName(kind));
    EXPECT_EQ(ParseLinkKind(LinkKindName(kind)), kind);
    EXPECT_THAT(LinkKindNames(), HasSubstr(std::string(LinkKindName(kind))));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kLinkKinds));
}

TEST(LinkTest, ReturnsNulloptForUnknownNames) {
  EXPECT_EQ(ParseLinkKind("NVLINK"), std::nullopt);
  EXPECT_EQ(ParseLinkKind(""), std::nullopt);
  EXPECT_EQ(ParseLinkKind("string"), std::nullopt);
}

TEST(LinkTest, DefaultsGetSlowerWithDistance) {
  for (const LinkTable& links : {GpuLinks(), CpuLinks()}) {
    const LinkSpeed* nearer = &LinkAt(links, LinkLevel::kDevice);
    for (LinkLevel level : kAllLinkLevels) {
      const LinkSpeed& link = LinkAt(links, level);
      EXPECT_TRUE(std::isfinite(link.bandwidth) && link.bandwidth > 0) << level;
      EXPECT_TRUE(std::isfinite(link.latency) && link.latency >= 0) << level;
      // CPU slots have no NVLink; its speed is only a placeholder.
      if (links == CpuLinks() && level == LinkLevel::kNvlink) continue;
      // A network card may be faster than the link between two sockets.
      if (level != LinkLevel::kNetwork) {
        EXPECT_LE(link.bandwidth, nearer->bandwidth) << level;
      }
      EXPECT_GE(link.latency, nearer->latency) << level;
      nearer = &link;
    }
  }
}

TEST(LinkTest, PrintsByName) {
  std::ostringstream out;
  out << LinkLevel::kNumaNode << ' ' << LinkKind::kSharedMemory;
  EXPECT_EQ(out.str(), "numa_node shared_memory");
}

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

HostGroup Host(std::string name, int64_t count = 1, size_t devices = 1) {
  HostGroup group;
  group.name = std::move(name);
  group.count = count;
  group.devices.resize(devices);
  return group;
}

TEST(HostProblemsTest, AcceptsValidCluster) {
  EXPECT_THAT(HostProblems({Host("a"), Host("node", 16, 8)}), IsEmpty());
}

TEST(HostProblemsTest, RequiresHostsAndDevices) {
  EXPECT_THAT(HostProblems({}),
              ElementsAre("the cluster has no host; give at least one"));
  EXPECT_THAT(HostProblems({Host("a"), Host("b", 1, 0)}),
              ElementsAre(AllOf(HasSubstr("hosts[1].devices is empty"),
                                HasSubstr("leave the host out"))));
}

TEST(HostProblemsTest, ReportsOutOfRangeFieldsWithPathAndFix) {
  HostGroup group = Host("a b", 0, 2);
  group.nics = 0;
  group.nvlink_hosts = 0;
  group.devices[1].socket = -1;
  group.devices[1].numa_node = kMaxDomain + 1;
  group.devices[1].nvlink_domain = -2;
  group.devices[1].memory_bytes = -5;
  group.devices[1].model = "naïve";
  group.devices[0].bus_id = std::string(129, 'x');
  LinkAt(group.links, LinkLevel::kHost).bandwidth = -1e9;
  LinkAt(group.links, LinkLevel::kNvlink).bandwidth = std::nan("");
  LinkAt(group.links, LinkLevel::kNetwork).latency =
      std::numeric_limits<double>::infinity();
  LinkAt(group.links, LinkLevel::kSocket).latency = -1;
  const std::vector<std::string> problems = HostProblems({group});
  for (const std::string expected :
       {"hosts[0].name is not a host name (3 characters); use 1 to 253",
        "hosts[0].count is 0; use 1 to 1048576", "hosts[0].nics is 0; use 1",
        "hosts[0].nvlink_hosts is 0; use a divisor",
        "hosts[0].devices[0].bus_id has 129 characters; use at most 128",
        "hosts[0].devices[1].model has 6 characters, some not printable",
        "hosts[0].devices[1].socket is -1; use 0 to 1000000",
        "hosts[0].devices[1].numa_node is 1000001",
        "hosts[0].devices[1].nvlink_domain is -2; use -1 to",
        "hosts[0].devices[1].memory_bytes is -5",
        "hosts[0].links.host.bandwidth is -1e+09 B/s; use a finite number",
        "hosts[0].links.nvlink.bandwidth is nan",
        "hosts[0].links.network.latency is inf",
        "hosts[0].links.socket.latency is -1 s"}) {
    EXPECT_THAT(problems, Contains(HasSubstr(expected)));
  }
  EXPECT_THAT(problems, SizeIs(14));
}

TEST(HostProblemsTest, BoundsTheNumberOfHostsAndDevices) {
  EXPECT_THAT(HostProblems({Host("a", kMaxHosts)}), IsEmpty());
  EXPECT_THAT(HostProblems({Host("a", kMaxHosts), Host("b")}),
              ElementsAre(HasSubstr("has 1048577 hosts; use at most 1048576")));
  EXPECT_THAT(HostProblems({Host("a", kMaxHosts, 65)}),
              ElementsAre(HasSubstr("68157440 devices; use at most 67108864")));
  EXPECT_THAT(
      HostProblems({Host("a", 1, 4097)}),
      ElementsAre(HasSubstr("hosts[0].devices has 4097 devices; use at most")));
}

TEST(HostProblemsTest, NvlinkHostsMustDivideTheGroup) {
  HostGroup group = Host("a", 36);
  group.nvlink_hosts = 18;
  EXPECT_THAT(HostProblems({group}), IsEmpty());
  group.nvlink_hosts = 16;
  EXPECT_THAT(HostProblems({group}),
              ElementsAre(HasSubstr("nvlink_hosts is 16; use a divisor of the "
                                    "36 hosts")));
}

TEST(HostProblemsTest, ReportsNameClashOnce) {
  EXPECT_THAT(HostProblems({Host("a"), Host("a")}),
              ElementsAre(HasSubstr("hosts[1].name \"a\" names a host that "
                                    "is already named by hosts[0] \"a\"")));
  EXPECT_THAT(HostProblems({Host("n", 4), Host("n3")}),
              ElementsAre(HasSubstr("hosts[1].name \"n3\" names a host that "
                                    "is already named by hosts[0] \"n\" "
                                    "(numbered)")));
  EXPECT_THAT(HostProblems({Host("n", 4), Host("n4")}), IsEmpty());
  EXPECT_THAT(HostProblems({Host("n", 4), Host("n03")}), IsEmpty());
  EXPECT_THAT(HostProblems({Host("n", 11), Host("n1", 2)}), SizeIs(1));
  EXPECT_THAT(HostProblems({Host("n", 10), Host("n1", 2)}), IsEmpty());
  EXPECT_THAT(HostProblems({Host("n", 4), Host("n")}), IsEmpty());
}

// Compares the names of all hosts one by one.
bool NamesAreDistinct(const std::vector<HostGroup>& groups) {
  std::set<std::string> names;
  for (const HostGroup& group : groups) {
    for (int64_t i = 0; i < group.count; ++i) {
      const std::string name =
          group.count == 1 ? group.name : absl::StrCat(group.name, i);
      if (!names.insert(name).second) return false;
    }
  }
  return true;
}

TEST(HostProblemsTest, ClashesMatchExpandedNames) {
  std::mt19937_64 random(1);
  int clashes = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<HostGroup> groups;
    for (size_t n = 1 + random() % 4; n > 0; --n) {
      std::string name = "n";
      for (size_t digits = random() % 3; digits > 0; --digits) {
        name += static_cast<char>('0' + random() % 3);
      }
      groups.push_back(Host(name, 1 + static_cast<int64_t>(random() % 130)));
      if (random() % 2 == 0) groups.back().count = 1;
    }
    const bool distinct = NamesAreDistinct(groups);
    clashes += distinct ? 0 : 1;
    ASSERT_EQ(HostProblems(groups).empty(), distinct) << "round " << round;
  }
  EXPECT_GT(clashes, 1000);
  EXPECT_LT(clashes, 19'000);
}

// A host in expanded form; Cluster stores hosts in groups.
struct PlainHost {
  std::string name;
  const HostGroup* group = nullptr;
  int64_t rack = 0;  // NVLink across hosts: unique for each set of hosts.
};

std::vector<HostGroup> RandomGroups(std::mt19937_64& random) {
  std::vector<HostGroup> groups(1 + random() % 4);
  for (size_t g = 0; g < groups.size(); ++g) {
    HostGroup& group = groups[g];
    group.name = absl::StrCat("group", g, "-");
    group.nvlink_hosts = 1 + static_cast<int64_t>(random() % 3);
    group.count = group.nvlink_hosts * (1 + static_cast<int64_t>(random() % 3));
    group.nics = 1 + static_cast<int64_t>(random() % 8);
    group.devices.resize(1 + random() % 6);
    for (Device& device : group.devices) {
      device.socket = static_cast<int64_t>(random() % 2);
      device.numa_node = device.socket * 2 + static_cast<int64_t>(random() % 2);
      device.nvlink_domain = static_cast<int64_t>(random() % 3) - 1;
    }
    for (LinkSpeed& link : group.links) {
      link.latency = static_cast<double>(random() % 4);
      link.bandwidth = 1 + static_cast<double>(random() % 4);
      link.kind = static_cast<LinkKind>(random() % kLinkKinds);
    }
  }
  return groups;
}

std::vector<PlainHost> WriteOut(const std::vector<HostGroup>& groups) {
  std::vector<PlainHost> hosts;
  int64_t racks = 0;
  for (const HostGroup& group : groups) {
    for (int64_t i = 0; i < group.count; ++i) {
      if (i % group.nvlink_hosts == 0) ++racks;
      hosts.push_back(
          {group.count == 1 ? group.name : absl::StrCat(group.name, i), &group,
           racks});
    }
  }
  return hosts;
}

// The link between two devices, from the definitions alone.
Link ExpectedLink(const PlainHost& a, const Device& x, const PlainHost& b,
                  const Device& y, bool same_device) {
  const bool same_host = &a == &b;
  LinkLevel level = LinkLevel::kNetwork;
  if (same_device) {
    level = LinkLevel::kDevice;
  } else if (a.rack == b.rack && x.nvlink_domain != Device::kNoNvlink &&
             x.nvlink_domain == y.nvlink_domain) {
    level = LinkLevel::kNvlink;
  } else if (same_host) {
    level = x.socket != y.socket         ? LinkLevel::kHost
            : x.numa_node != y.numa_node ? LinkLevel::kSocket
                                         : LinkLevel::kNumaNode;
  }
  const LinkSpeed& p = LinkAt(a.group->links, level);
  const LinkSpeed& q = LinkAt(b.group->links, level);
  LinkSpeed speed = p;
  speed.latency = std::max(p.latency, q.latency);
  speed.bandwidth = std::min(p.bandwidth, q.bandwidth);
  if (q.bandwidth < p.bandwidth) speed.kind = q.kind;
  if (q.bandwidth == p.bandwidth) speed.kind = std::min(p.kind, q.kind);
  return {level, speed};
}

TEST(ClusterTest, MatchesExpandedHosts) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::vector<HostGroup> groups = RandomGroups(random);
    const std::vector<PlainHost> hosts = WriteOut(groups);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Cluster cluster,
                                 Cluster::Create(groups));
    ASSERT_EQ(cluster.num_hosts(), static_cast<int64_t>(hosts.size()));
    std::vector<std::pair<size_t, size_t>> devices;
    for (size_t h = 0; h < hosts.size(); ++h) {
      const HostIndex host(static_cast<int64_t>(h));
      EXPECT_THAT(cluster.HostName(host), IsOkAndHolds(hosts[h].name));
      EXPECT_THAT(
          cluster.FirstDevice(host),
          IsOkAndHolds(DeviceIndex(static_cast<int64_t>(devices.size()))));
      EXPECT_THAT(
          cluster.DeviceCount(host),
          IsOkAndHolds(static_cast<int64_t>(hosts[h].group->devices.size())));
      EXPECT_THAT(
          cluster.NetworkBandwidth(host),
          IsOkAndHolds(
              LinkAt(hosts[h].group->links, LinkLevel::kNetwork).bandwidth *
              static_cast<double>(hosts[h].group->nics)));
      for (size_t d = 0; d < hosts[h].group->devices.size(); ++d) {
        devices.emplace_back(h, d);
      }
    }
    ASSERT_EQ(cluster.num_devices(), static_cast<int64_t>(devices.size()));
    for (size_t i = 0; i < devices.size(); ++i) {
      const auto [h, d] = devices[i];
      const Device& x = hosts[h].group->devices[d];
      const DeviceIndex a(static_cast<int64_t>(i));
      EXPECT_THAT(cluster.HostOf(a),
                  IsOkAndHolds(HostIndex(static_cast<int64_t>(h))));
      EXPECT_THAT(cluster.DeviceAt(a), IsOkAndHolds(x));
      for (size_t j = 0; j < devices.size(); ++j) {
        const auto [k, e] = devices[j];
        TESSERA_ASSERT_OK_AND_ASSIGN(
            const Link link,
            cluster.LinkBetween(a, DeviceIndex(static_cast<int64_t>(j))));
        const Link expected = ExpectedLink(hosts[h], x, hosts[k],
                                           hosts[k].group->devices[e], i == j);
        ASSERT_EQ(link, expected)
            << "round " << round << " devices " << i << ' ' << j;
      }
    }
  }
}

Cluster Regular(int64_t hosts, size_t devices) {
  HostGroup group;
  group.name = "node";
  group.count = hosts;
  group.devices.resize(devices);
  return *Cluster::Create({group});
}

TEST(ClusterTest, RejectsUnknownDevicesHostsAndNames) {
  const Cluster cluster = Regular(2, 4);
  const auto no_device =
      StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("8 devices"));
  for (int64_t i : {int64_t{-1}, int64_t{8}, INT64_MAX, INT64_MIN}) {
    EXPECT_FALSE(cluster.Contains(DeviceIndex(i)));
    EXPECT_THAT(cluster.Locate(DeviceIndex(i)), no_device);
    EXPECT_THAT(cluster.HostOf(DeviceIndex(i)), no_device);
    EXPECT_THAT(cluster.DeviceAt(DeviceIndex(i)), no_device);
    EXPECT_THAT(cluster.LinkBetween(DeviceIndex(0), DeviceIndex(i)), no_device);
    EXPECT_THAT(cluster.LinkBetween(DeviceIndex(i), DeviceIndex(0)), no_device);
  }
  const auto no_host =
      StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("2 hosts"));
  for (int64_t i : {int64_t{-1}, int64_t{2}, INT64_MAX}) {
    EXPECT_THAT(cluster.FirstDevice(HostIndex(i)), no_host);
    EXPECT_THAT(cluster.DeviceCount(HostIndex(i)), no_host);
    EXPECT_THAT(cluster.HostName(HostIndex(i)), no_host);
    EXPECT_THAT(cluster.NetworkBandwidth(HostIndex(i)), no_host);
  }
}

TEST(ClusterTest, CreateListsEveryProblemUpToTwenty) {
  HostGroup bad;
  bad.name = "";
  bad.nics = 0;
  EXPECT_THAT(Cluster::Create({bad}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("has 3 problems: "), HasSubstr("name"),
                             HasSubstr("; hosts[0].nics"),
                             HasSubstr("; hosts[0].devices"))));
  bad.devices.resize(100);
  for (Device& device : bad.devices) device.socket = -1;
  EXPECT_THAT(Cluster::Create({bad}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("has 102 problems"), HasSubstr("; ..."),
                             HasSubstr("devices[17]"),
                             ::testing::Not(HasSubstr("devices[18]")))));
  EXPECT_THAT(Cluster::Create({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("has 1 problem: ")));
}

TEST(ClusterTest, SupportsMillionHosts) {
  const Cluster cluster = Regular(kMaxHosts, 64);
  EXPECT_EQ(cluster.num_devices(), kMaxClusterDevices);
  EXPECT_THAT(cluster.HostName(HostIndex(kMaxHosts - 1)),
              IsOkAndHolds("node1048575"));
  EXPECT_THAT(cluster.HostOf(DeviceIndex(kMaxClusterDevices - 1)),
              IsOkAndHolds(HostIndex(kMaxHosts - 1)));
}

TEST(ClusterTest, ComparesByContent) {
  const Cluster cluster = Regular(2, 4);
  const Cluster copy = cluster;
  EXPECT_EQ(cluster, copy);
  EXPECT_EQ(cluster, Regular(2, 4));
  EXPECT_FALSE(cluster == Regular(4, 2));
}

TEST(ClusterTest, Describes) {
  EXPECT_EQ(Describe(Regular(16, 8)), "16 hosts, 128 devices; 16 x 8 gpu");
  std::vector<HostGroup> groups(10);
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].name = absl::StrCat("h", i);
    groups[i].devices.resize(1);
    groups[i].devices[0].model = "H100";
  }
  EXPECT_THAT(Describe(*Cluster::Create(groups)),
              AllOf(HasSubstr("10 hosts, 10 devices; 1 x 1 gpu (H100), "),
                    HasSubstr(", ...")));
}

}  // namespace

}  // namespace tessera::topology
