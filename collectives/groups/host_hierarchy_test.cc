#include "collectives/groups/host_hierarchy.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/strategy_chooser.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using Found = absl::StatusOr<std::shared_ptr<const Hierarchy>>;

// On a rank for each host named; "" is this process's own.
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

// The engine is as it was, and hierarchical algorithms have what they need.
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

}  // namespace
}  // namespace tessera::collectives
