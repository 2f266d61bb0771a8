#include "collectives/groups/host_hierarchy.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

RankLocation At(std::string host, std::optional<int64_t> socket) {
  return {std::move(host), socket};
}

TEST(ExchangeLocationsTest, EveryRankGetsTheLocationsOfAll) {
  const std::vector<RankLocation> at = {At("a b", 0), At("", 12), At("a b", 1),
                                        At("c", std::nullopt)};
  auto engines = *CreateInProcessEngines(static_cast<int64_t>(at.size()));
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < at.size(); ++r) {
    ranks.emplace_back([&, r] {
      EXPECT_THAT(ExchangeLocations(*engines[r], at[r], absl::Seconds(30)),
                  IsOkAndHolds(at));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(RankLocationTest, ThisProcessHasOneHost) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const RankLocation here, RankLocation::Self());
  EXPECT_NE(here.host, "");
  EXPECT_THAT(RankLocation::Self(), IsOkAndHolds(here));
}

// The engine is unchanged, and hierarchical algorithms are available.
TEST(HostHierarchyTest, HierarchicalStrategyUsesHierarchy) {
  const std::vector<RankLocation> at = {At("a", 0), At("a", 0), At("b", 0),
                                        At("b", 0)};
  auto engines = *CreateInProcessEngines(4);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < engines.size(); ++r) {
    ranks.emplace_back([&, r] {
      const auto locations =
          ExchangeLocations(*engines[r], at[r], absl::Seconds(30));
      TESSERA_ASSERT_OK(locations.status());
      CommunicatorOptions options;
      options.hierarchy = HostHierarchy(*locations);
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

// The groups of each level, as lists of ranks.
using GroupsOfLevel = std::set<std::vector<int64_t>>;

std::vector<GroupsOfLevel> GroupsOf(const Hierarchy* hierarchy) {
  std::vector<GroupsOfLevel> levels;
  if (hierarchy == nullptr) return levels;
  for (int64_t level = 0; level < hierarchy->levels(); ++level) {
    std::map<int64_t, std::vector<int64_t>> members;
    for (int64_t r = 0; r < hierarchy->ranks(); ++r) {
      members[hierarchy->GroupOf(level, Rank(r))].push_back(r);
    }
    GroupsOfLevel& groups = levels.emplace_back();
    for (auto& [group, ranks] : members) groups.insert(ranks);
  }
  return levels;
}

std::vector<GroupsOfLevel> GroupsFor(
    const std::vector<RankLocation>& locations) {
  return GroupsOf(HostHierarchy(locations).get());
}

TEST(HostHierarchyTest, HasSocketsAndHosts) {
  EXPECT_EQ(GroupsFor({At("a", 0), At("a", 0), At("a", 1), At("a", 1),
                       At("b", 0), At("b", 0), At("b", 1), At("b", 1)}),
            (std::vector<GroupsOfLevel>{{{0, 1}, {2, 3}, {4, 5}, {6, 7}},
                                        {{0, 1, 2, 3}, {4, 5, 6, 7}}}));
}

TEST(HostHierarchyTest, TakesUnevenHostsAndInterleavedRanks) {
  EXPECT_EQ(GroupsFor({At("b", 1), At("a", 0), At("b", 0), At("a", 0),
                       At("b", 1), At("c", 0)}),
            (std::vector<GroupsOfLevel>{{{0, 4}, {1, 3}, {2}, {5}},
                                        {{0, 2, 4}, {1, 3}, {5}}}));
}

TEST(HostHierarchyTest, OmitsTrivialLevels) {
  // One socket per host.
  EXPECT_EQ(GroupsFor({At("a", 0), At("a", 0), At("b", 1), At("b", 1)}),
            (std::vector<GroupsOfLevel>{{{0, 1}, {2, 3}}}));
  // One rank per socket.
  EXPECT_EQ(GroupsFor({At("a", 0), At("a", 1), At("b", 0), At("b", 1)}),
            (std::vector<GroupsOfLevel>{{{0, 1}, {2, 3}}}));
  // One host.
  EXPECT_EQ(GroupsFor({At("a", 0), At("a", 1), At("a", 0), At("a", 1)}),
            (std::vector<GroupsOfLevel>{{{0, 2}, {1, 3}}}));
}

TEST(HostHierarchyTest, IsNullWithoutNontrivialLevels) {
  for (const std::vector<RankLocation>& at :
       {std::vector<RankLocation>{At("a", 0), At("a", 0), At("a", 0)},
        {At("a", 0), At("b", 0), At("c", 1)},
        {At("a", 0), At("a", 1), At("a", 2)},
        {At("a", std::nullopt), At("a", 1)},
        {At("a", 1)}}) {
    EXPECT_EQ(HostHierarchy(at), nullptr);
  }
}

TEST(HostHierarchyTest, UnknownSocketCountsAsOneSocket) {
  EXPECT_EQ(GroupsFor({At("a", 0), At("a", 1), At("a", std::nullopt),
                       At("b", 0), At("b", 0), At("b", 1)}),
            (std::vector<GroupsOfLevel>{{{0, 1, 2}, {3, 4}, {5}},
                                        {{0, 1, 2}, {3, 4, 5}}}));
}

// Applies the definition to every pair: the ranks for which `same` holds with
// rank r.
GroupsOfLevel GroupsWith(size_t ranks,
                         const std::function<bool(size_t, size_t)>& same) {
  GroupsOfLevel groups;
  for (size_t r = 0; r < ranks; ++r) {
    std::vector<int64_t> members;
    for (size_t other = 0; other < ranks; ++other) {
      if (same(r, other)) members.push_back(static_cast<int64_t>(other));
    }
    groups.insert(members);
  }
  return groups;
}

// Every placement of five ranks on two hosts of two sockets each, one of which
// may be unknown.
TEST(HostHierarchyTest, AgreesWithTheDefinitionForEveryPlacement) {
  constexpr size_t kRanks = 5, kPlaces = 6;
  size_t cases = 1;
  for (size_t i = 0; i < kRanks; ++i) cases *= kPlaces;
  for (size_t number = 0; number < cases; ++number) {
    std::vector<RankLocation> at;
    for (size_t rest = number; at.size() < kRanks; rest /= kPlaces) {
      const size_t place = rest % kPlaces;
      at.push_back(At(place % 2 == 0 ? "a" : "b", std::nullopt));
      if (place >= 2) at.back().socket = static_cast<int64_t>(place / 2 - 1);
    }
    const auto same_host = [&](size_t i, size_t j) {
      return at[i].host == at[j].host;
    };
    const auto same_socket = [&](size_t i, size_t j) {
      if (!same_host(i, j)) return false;
      for (size_t k = 0; k < kRanks; ++k) {
        if (same_host(i, k) && !at[k].socket) return true;
      }
      return at[i].socket == at[j].socket;
    };
    std::vector<GroupsOfLevel> want;
    const GroupsOfLevel hosts = GroupsWith(kRanks, same_host);
    const GroupsOfLevel sockets = GroupsWith(kRanks, same_socket);
    for (const GroupsOfLevel& groups : {sockets, hosts}) {
      if (groups.size() == 1 || groups.size() == kRanks) continue;
      if (want.empty() || want.back() != groups) want.push_back(groups);
    }
    ASSERT_EQ(GroupsFor(at), want) << "case " << number;
  }
}

}  // namespace

}  // namespace tessera::collectives
