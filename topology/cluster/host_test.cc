#include "topology/cluster/host.h"

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

HostGroup Host(std::string name, int64_t count = 1, size_t devices = 1) {
  HostGroup group;
  group.name = std::move(name);
  group.count = count;
  group.devices.resize(devices);
  return group;
}

TEST(HostProblemsTest, FindsNothingInAGoodCluster) {
  EXPECT_THAT(HostProblems({Host("a"), Host("node", 16, 8)}), IsEmpty());
}

TEST(HostProblemsTest, AClusterNeedsAHostAndAHostADevice) {
  EXPECT_THAT(HostProblems({}),
              ElementsAre("the cluster has no host; give at least one"));
  EXPECT_THAT(HostProblems({Host("a"), Host("b", 1, 0)}),
              ElementsAre(AllOf(HasSubstr("hosts[1].devices is empty"),
                                HasSubstr("leave the host out"))));
}

TEST(HostProblemsTest, EveryFieldOutOfRangeIsSaidWithItsPlaceAndFix) {
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

TEST(HostProblemsTest, NamesThatMeetAreReportedOnce) {
  EXPECT_THAT(HostProblems({Host("a"), Host("a")}),
              ElementsAre(HasSubstr("hosts[1].name \"a\" names a host that "
                                    "hosts[0] \"a\" names too")));
  EXPECT_THAT(HostProblems({Host("n", 4), Host("n3")}),
              ElementsAre(HasSubstr("hosts[1].name \"n3\" names a host that "
                                    "hosts[0] \"n\" (numbered)")));
  EXPECT_THAT(HostProblems({Host("n", 4), Host("n4")}), IsEmpty());
  EXPECT_THAT(HostProblems({Host("n", 4), Host("n03")}), IsEmpty());
  EXPECT_THAT(HostProblems({Host("n", 11), Host("n1", 2)}), SizeIs(1));
  EXPECT_THAT(HostProblems({Host("n", 10), Host("n1", 2)}), IsEmpty());
  EXPECT_THAT(HostProblems({Host("n", 4), Host("n")}), IsEmpty());
}

// The names of all hosts, written out.
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

TEST(HostProblemsTest, FindsClashesExactlyWhereNamesWrittenOutClash) {
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

}  // namespace
}  // namespace tessera::topology
