#include "topology/placement/link_profile.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "topology/cluster/cluster_file.h"
#include "topology/mesh.h"
#include "topology/placement/testing/reference_cost.h"

namespace tessera::topology {

namespace {

TEST(AxisRanksTest, AgreesWithTheGroupsOfAMesh) {
  for (int64_t size = 1; size <= 5; ++size) {
    for (int64_t stride = 1; stride <= 4; ++stride) {
      const int64_t world = size * stride * 3;
      const std::vector<Axis> axes = {{"inner", AxisSize(stride)},
                                      {"own", AxisSize(size)},
                                      {"outer", AxisSize(3)}};
      const Groups groups = *Mesh::Create(axes)->GroupsAlong("own");
      const AxisRanks ranks(size, stride);
      for (int64_t rank = 0; rank < world; ++rank) {
        const std::vector<Rank> members = *groups.MembersWith(Rank(rank));
        const auto index = static_cast<size_t>(*groups.IndexOf(Rank(rank)));
        const size_t n = members.size();
        ASSERT_EQ(ranks.Coordinate(rank), static_cast<int64_t>(index));
        ASSERT_EQ(ranks.Base(rank), members[0].value());
        ASSERT_EQ(ranks.IsFirst(rank), index == 0);
        ASSERT_EQ(ranks.IsLast(rank), index + 1 == n);
        ASSERT_EQ(ranks.Next(rank), members[(index + 1) % n].value());
        ASSERT_EQ(ranks.Previous(rank), members[(index + n - 1) % n].value());
        for (int64_t first = 0; first <= world; ++first) {
          for (int64_t end = first; end <= world; ++end) {
            ASSERT_EQ(
                ranks.MembersIn(rank, first, end),
                std::count_if(members.begin(), members.end(), [&](Rank member) {
                  return member.value() >= first && member.value() < end;
                }));
          }
        }
      }
    }
  }
}

HostGroup RandomGroup(std::mt19937_64& random, std::string name) {
  HostGroup group;
  group.name = std::move(name);
  group.nvlink_hosts = random() % 3 == 0 ? 2 + random() % 2 : 1;
  group.count = group.nvlink_hosts * (1 + static_cast<int64_t>(random() % 6));
  group.nics = 1 + static_cast<int64_t>(random() % 4);
  group.devices.resize(1 + random() % 7);
  for (size_t i = 0; i < group.devices.size(); ++i) {
    Device& device = group.devices[i];
    device.numa_node = static_cast<int64_t>(i) / 2;
    device.socket = device.numa_node / 2;
    device.nvlink_domain = static_cast<int64_t>(random() % 4) - 1;
  }
  for (LinkSpeed& link : group.links) {
    link.latency = static_cast<double>(random() % 8);
    link.bandwidth = 1 + static_cast<double>(random() % 16);
  }
  return group;
}

// Calls `visit` for every size and stride that fit in a world.
template <typename Visit>
void ForEachAxis(int64_t world, Visit visit) {
  for (int64_t size = 1; size <= world; ++size) {
    if (world % size != 0) continue;
    for (int64_t stride = 1; stride <= world / size; ++stride) {
      if (world / size % stride == 0) visit(size, stride);
    }
  }
}

std::vector<std::pair<double, double>> Sorted(const SlowestLinks& slowest) {
  std::vector<std::pair<double, double>> links;
  for (const LinkCost& link : slowest.links()) {
    links.emplace_back(link.latency, link.seconds_per_byte);
  }
  std::sort(links.begin(), links.end());
  return links;
}

void ExpectEqual(const LinkProfile& a, const LinkProfile& b,
                 const std::string& what) {
  ASSERT_EQ(a.size, b.size) << what;
  ASSERT_EQ(Sorted(a.ring), Sorted(b.ring)) << what;
  ASSERT_EQ(Sorted(a.chain), Sorted(b.chain)) << what;
  ASSERT_EQ(a.exchange.latency, b.exchange.latency) << what;
  ASSERT_DOUBLE_EQ(a.exchange.seconds_per_byte, b.exchange.seconds_per_byte)
      << what;
}

TEST(LinkProfileTest, FewHostsRepresentAllEqualHosts) {
  std::mt19937_64 random(1);
  int64_t compared = 0;
  for (int round = 0; round < 150; ++round) {
    const Cluster cluster = *Cluster::Create({RandomGroup(random, "h")});
    for (int64_t world = 1; world <= cluster.num_devices(); ++world) {
      ForEachAxis(world, [&](int64_t size, int64_t stride) {
        ExpectEqual(MeasureLinks(cluster, world, size, stride, {}),
                    MeasureAllLinks(cluster, world, size, stride, {}),
                    absl::StrCat("round ", round, " world ", world, " size ",
                                 size, " stride ", stride));
        ++compared;
      });
    }
  }
  EXPECT_GT(compared, 10'000);
}

// Worlds with many blocks and hosts, where the phase wraps around.
TEST(LinkProfileTest, FewHostsRepresentLargerWorlds) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 1500; ++round) {
    HostGroup group = RandomGroup(random, "h");
    const int64_t size = 1 + static_cast<int64_t>(random() % 24);
    const int64_t stride = 1 + static_cast<int64_t>(random() % 24);
    const int64_t world =
        size * stride * (1 + static_cast<int64_t>(random() % 20));
    const auto devices = static_cast<int64_t>(group.devices.size());
    group.count =
        (world / devices / group.nvlink_hosts + 1) * group.nvlink_hosts;
    const Cluster cluster = *Cluster::Create({group});
    ExpectEqual(MeasureLinks(cluster, world, size, stride, {}),
                MeasureAllLinks(cluster, world, size, stride, {}),
                absl::StrCat("round ", round, " world ", world, " size ", size,
                             " stride ", stride, " devices ", devices));
  }
}

TEST(LinkProfileTest, FewHostsRepresentDifferingGroups) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 6000; ++round) {
    std::vector<HostGroup> groups;
    int64_t devices = 0;
    for (size_t i = 0; i < 2 + random() % 4; ++i) {
      groups.push_back(RandomGroup(random, absl::StrCat("g", i, "-")));
      // Long and short runs of hosts, and many small hosts.
      if (random() % 2) groups.back().count *= 5;
      if (random() % 2) groups.back().devices.resize(1);
      devices += groups.back().count *
                 static_cast<int64_t>(groups.back().devices.size());
    }
    const Cluster cluster = *Cluster::Create(groups);
    const auto below = [&](int64_t bound) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
    };
    const int64_t size = 1 + below(std::min<int64_t>(devices, 8));
    const int64_t stride = 1 + below(devices / size);
    const int64_t world = size * stride * (1 + below(devices / size / stride));
    ExpectEqual(MeasureLinks(cluster, world, size, stride, {}),
                MeasureAllLinks(cluster, world, size, stride, {}),
                absl::StrCat("round ", round, " world ", world, " size ", size,
                             " stride ", stride));
  }
}

TEST(LinkProfileTest, CostsAgreeWithTheDefinitionsOnUnevenClusters) {
  std::mt19937_64 random(3);
  int64_t compared = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<HostGroup> groups;
    for (size_t i = 0; i < 1 + random() % 3; ++i) {
      groups.push_back(RandomGroup(random, absl::StrCat("g", i, "-")));
    }
    const Cluster cluster = *Cluster::Create(groups);
    const int64_t most = std::min<int64_t>(cluster.num_devices(), 48);
    for (int64_t world = 1; world <= most; world += 1 + random() % 5) {
      ForEachAxis(world, [&](int64_t size, int64_t stride) {
        const ReferenceCost reference(cluster, world, size, stride);
        const LinkProfile profile =
            MeasureLinks(cluster, world, size, stride, {});
        for (int kind = 0; kind < kCollectiveKinds; ++kind) {
          const Transfer transfer = {static_cast<CollectiveKind>(kind),
                                     static_cast<double>(random() % 1000),
                                     static_cast<double>(random() % 3)};
          const double expected = reference.Seconds(transfer);
          ASSERT_NEAR(TransferSeconds(transfer, profile), expected,
                      1e-12 * expected)
              << transfer.kind << " round " << round << " world " << world
              << " size " << size << " stride " << stride;
          ++compared;
        }
      });
    }
  }
  EXPECT_GT(compared, 10'000);
}

TEST(LinkProfileTest, MeasuresOnlyRequestedLinks) {
  const Cluster cluster = *ParseCluster("hosts=2,gpus=4");
  const LinkProfile ring = MeasureLinks(
      cluster, 8, 8, 1, {.ring = true, .chain = false, .exchange = false});
  EXPECT_FALSE(ring.ring.links().empty());
  EXPECT_TRUE(ring.chain.links().empty());
  EXPECT_EQ(ring.exchange, LinkCost());
}

// 2 hosts of 4 GPUs, 4 cards of 50 GB/s each.
TEST(LinkProfileTest, TrafficLeavingHostSharesItsNics) {
  const Cluster cluster = *ParseCluster("hosts=2,gpus=4,network=50GB");
  const auto network = [&](int64_t size, int64_t stride) {
    return 1 / MeasureLinks(cluster, 8, size, stride, {})
                   .ring.links()
                   .front()
                   .seconds_per_byte;
  };
  // One ring over both hosts uses all four cards; so do two rings of four, with
  // two cards each, and four rings of two, with one card each.
  EXPECT_DOUBLE_EQ(network(8, 1), 200e9);
  EXPECT_DOUBLE_EQ(network(4, 2), 100e9);
  EXPECT_DOUBLE_EQ(network(2, 4), 50e9);
  const Cluster one_card = *ParseCluster("hosts=2,gpus=4,network=50GB,nics=1");
  const LinkProfile shared = MeasureLinks(one_card, 8, 2, 4, {});
  EXPECT_DOUBLE_EQ(shared.ring.links().front().seconds_per_byte, 4 / 50e9);
  EXPECT_DOUBLE_EQ(shared.chain.links().front().seconds_per_byte, 4 / 50e9);
}

TEST(SlowestLinksTest, KeepsOnlyRelevantLinks) {
  SlowestLinks slowest;
  EXPECT_EQ(slowest.Seconds(100), 0);
  slowest.Add({1, 1});
  slowest.Add({1, 1});
  slowest.Add({0.5, 1});
  EXPECT_EQ(slowest.links().size(), 1u);
  slowest.Add({5, 0.5});
  EXPECT_EQ(slowest.links().size(), 2u);
  EXPECT_EQ(slowest.Seconds(0), 5);
  EXPECT_EQ(slowest.Seconds(100), 101);
  slowest.Add({6, 2});
  EXPECT_EQ(slowest.links().size(), 1u);
}

LinkProfile Profile(int64_t size) {
  LinkProfile profile;
  profile.size = size;
  profile.ring.Add({1, 0.25});
  profile.chain.Add({2, 0.5});
  profile.exchange = {3, 10};
  return profile;
}

TEST(CollectiveCostTest, FollowsTheFormulas) {
  const LinkProfile profile = Profile(4);
  // 16 bytes over 4 ranks: parts of 4 bytes; 3 steps.
  const std::map<CollectiveKind, double> seconds = {
      {CollectiveKind::kAllReduce, 2 * 3 * (1 + 4 * 0.25)},
      {CollectiveKind::kAllGather, 3 * (1 + 4 * 0.25)},
      {CollectiveKind::kReduceScatter, 3 * (1 + 4 * 0.25)},
      {CollectiveKind::kAllToAll, 3 * 3 + 4 * 10},
      {CollectiveKind::kSendRecv, 2 + 16 * 0.5},
  };
  for (const auto& [kind, expected] : seconds) {
    EXPECT_DOUBLE_EQ(TransferSeconds({kind, 16, 1}, profile), expected) << kind;
    EXPECT_DOUBLE_EQ(TransferSeconds({kind, 16, 7}, profile), 7 * expected);
    EXPECT_EQ(TransferSeconds({kind, 16, 1}, Profile(1)), 0) << kind;
    EXPECT_EQ(TransferSeconds({kind, 16, 0}, profile), 0) << kind;
  }
}

TEST(CollectiveCostTest, TrafficIsTheSumOfItsTransfers) {
  const LinkProfile profile = Profile(4);
  const std::vector<Transfer> transfers = {{CollectiveKind::kAllReduce, 16, 2},
                                           {CollectiveKind::kSendRecv, 4, 3}};
  EXPECT_DOUBLE_EQ(TrafficSeconds(transfers, profile),
                   TransferSeconds(transfers[0], profile) +
                       TransferSeconds(transfers[1], profile));
  EXPECT_EQ(TrafficSeconds({}, profile), 0);
}

TEST(CollectiveCostTest, NeedsMatchFormulas) {
  const auto needs = [](CollectiveKind kind) {
    const std::vector<Transfer> transfers = {{kind, 1, 1}};
    const LinkNeeds needs = NeedsOf(transfers);
    return std::vector<bool>{needs.ring, needs.chain, needs.exchange};
  };
  const std::vector<bool> ring = {true, false, false};
  EXPECT_EQ(needs(CollectiveKind::kAllReduce), ring);
  EXPECT_EQ(needs(CollectiveKind::kAllGather), ring);
  EXPECT_EQ(needs(CollectiveKind::kReduceScatter), ring);
  EXPECT_EQ(needs(CollectiveKind::kSendRecv),
            (std::vector<bool>{false, true, false}));
  EXPECT_EQ(needs(CollectiveKind::kAllToAll),
            (std::vector<bool>{false, false, true}));
}

TEST(CollectiveCostTest, BytesPerLink) {
  EXPECT_EQ(BytesPerLink({CollectiveKind::kAllReduce, 16, 5}, 4), 24);
  EXPECT_EQ(BytesPerLink({CollectiveKind::kAllGather, 16, 5}, 4), 12);
  EXPECT_EQ(BytesPerLink({CollectiveKind::kReduceScatter, 16, 5}, 4), 12);
  EXPECT_EQ(BytesPerLink({CollectiveKind::kAllToAll, 16, 5}, 4), 4);
  EXPECT_EQ(BytesPerLink({CollectiveKind::kSendRecv, 16, 5}, 4), 16);
  EXPECT_EQ(BytesPerLink({CollectiveKind::kSendRecv, 16, 5}, 1), 0);
}

}  // namespace

}  // namespace tessera::topology
