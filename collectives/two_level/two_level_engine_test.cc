#include "collectives/two_level/two_level_engine.h"

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/in_process_store.h"
#include "collectives/communicator.h"
#include "collectives/gloo/gloo_engine.h"
#include "collectives/in_process/in_process.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Names = std::vector<std::string>;

TEST(HostMapTest, NumbersHostsByTheirFirstRanks) {
  const HostMap map({"b", "a", "b", "a", "c"});
  EXPECT_EQ(map.hosts(), 3);
  EXPECT_EQ(map.host_of(Rank(2)), 0);
  EXPECT_EQ(map.place_of(Rank(2)), 1);
  EXPECT_EQ(map.leader_of(1), Rank(1));
  EXPECT_THAT(map.ranks_of(1), ElementsAre(Rank(1), Rank(3)));
  EXPECT_FALSE(map.in_order());
}

TEST(HostMapTest, RestrictsToMembersInTheirOrder) {
  const HostMap map({"a", "a", "b", "b"});
  EXPECT_TRUE(map.in_order());
  const HostMap some = map.Restrict(std::vector{Rank(3), Rank(1), Rank(0)});
  EXPECT_EQ(some.hosts(), 2);
  EXPECT_EQ(some.name_of(Rank(0)), "b");
  EXPECT_TRUE(some.in_order());
}

// Runs `body` on threads for the ranks, whose hosts are `names`.
absl::Status RunOnHosts(const Names& names,
                        const std::function<absl::Status(Engine&)>& body) {
  const HostMap map(names);
  TESSERA_ASSIGN_OR_RETURN(const auto stores, MakeInProcessStores(map.size()));
  std::vector<std::vector<std::unique_ptr<Engine>>> within;
  for (int64_t host = 0; host < map.hosts(); ++host) {
    const auto ranks = static_cast<int64_t>(map.ranks_of(host).size());
    TESSERA_ASSIGN_OR_RETURN(within.emplace_back(),
                             CreateInProcessEngines(ranks));
  }
  std::vector<absl::Status> statuses(names.size());
  const auto run = [&](Rank rank) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(
        auto network,
        CreateGlooEngine(*stores[static_cast<size_t>(rank.value())]));
    auto& here = within[static_cast<size_t>(map.host_of(rank))];
    TESSERA_ASSIGN_OR_RETURN(
        auto engine,
        JoinEngines(map,
                    std::move(here[static_cast<size_t>(map.place_of(rank))]),
                    std::move(network)));
    return body(*engine);
  };
  std::vector<std::thread> threads;
  for (size_t r = 0; r < names.size(); ++r) {
    threads.emplace_back(
        [&, r] { statuses[r] = run(Rank(static_cast<int64_t>(r))); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<float> InputOf(int64_t rank, size_t count) {
  std::mt19937 generator(static_cast<unsigned>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

// The inputs of all ranks, added in rank order.
std::vector<float> SumInOrder(int64_t ranks, size_t count) {
  std::vector<float> sum = InputOf(0, count);
  for (int64_t r = 1; r < ranks; ++r) {
    const std::vector<float> next = InputOf(r, count);
    for (size_t i = 0; i < count; ++i) sum[i] += next[i];
  }
  return sum;
}

// Without CommunicatorOptions::reproducible.
TEST(TwoLevelEngineTest, SumsHaveTheSameBitsForEveryDivisionIntoHosts) {
  for (const Names& names :
       {Names{"a", "a", "b", "b", "b"}, Names{"a", "b", "b", "b", "b"},
        Names{"a", "a", "a", "a", "b"}, Names{"a", "a", "b", "c", "c"}}) {
    for (const size_t count : {5, 70'001, 1'000'003}) {
      const std::vector<float> expected =
          SumInOrder(static_cast<int64_t>(names.size()), count);
      EXPECT_THAT(
          RunOnHosts(names,
                     [&](Engine& engine) -> absl::Status {
                       std::vector<float> values =
                           InputOf(engine.rank().value(), count);
                       const Buffer buffer{std::span(values)};
                       Scratch scratch;
                       const Operation sum =
                           AllReduceOf(buffer, buffer, Reduction::Sum());
                       EXPECT_TRUE(engine.FoldsInRankOrder(sum));
                       OperationContext context(
                           SignatureOf(sum, engine.size(), 1, 1,
                                       Algorithm::kEngine),
                           DeadlineAfter(absl::Seconds(60)), scratch);
                       engine.Enter(context);
                       TESSERA_RETURN_IF_ERROR(engine.Run(sum, context));
                       engine.Leave(context);
                       EXPECT_EQ(std::memcmp(values.data(), expected.data(),
                                             count * sizeof(float)),
                                 0);
                       return absl::OkStatus();
                     }),
          IsOk());
    }
  }
}

TEST(TwoLevelEngineTest, SubgroupsUseTheEngineThatConnectsTheirRanks) {
  EXPECT_THAT(
      RunOnHosts(
          {"a", "a", "b", "b"},
          [](Engine& engine) -> absl::Status {
            const int64_t deadline = DeadlineAfter(absl::Seconds(60));
            const int64_t r = engine.rank().value();
            const std::vector<Rank> host = {Rank(r / 2 * 2),
                                            Rank(r / 2 * 2 + 1)};
            TESSERA_ASSIGN_OR_RETURN(const auto within,
                                     engine.CreateSubgroup(host, 10, deadline));
            EXPECT_EQ(within->name(), "in_process");
            const std::vector<Rank> column = {Rank(r % 2), Rank(r % 2 + 2)};
            TESSERA_ASSIGN_OR_RETURN(
                const auto across, engine.CreateSubgroup(column, 11, deadline));
            EXPECT_EQ(across->name(), "gloo");
            if (r == 3) return absl::OkStatus();
            const std::vector<Rank> three = {Rank(0), Rank(1), Rank(2)};
            TESSERA_ASSIGN_OR_RETURN(
                const auto both, engine.CreateSubgroup(three, 12, deadline));
            EXPECT_EQ(both->name(), "two_level");
            return absl::OkStatus();
          }),
      IsOk());
}

TEST(TwoLevelEngineTest, JoinRejectsEnginesThatDoNotMatchTheHosts) {
  auto within = CreateInProcessEngines(2);
  auto network = CreateInProcessEngines(3);
  ASSERT_THAT(within, IsOk());
  ASSERT_THAT(network, IsOk());
  EXPECT_THAT(JoinEngines(HostMap({"a", "b", "b"}), std::move((*within)[0]),
                          std::move((*network)[0])),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rank 0 of 2"),
                             HasSubstr("3 ranks, of them 1 on the host"))));
}

TEST(TwoLevelEngineTest, OneHostNeedsNoNetwork) {
  auto stores = MakeInProcessStores(1);
  ASSERT_THAT(stores, IsOk());
  const auto engine = CreateTwoLevelEngine(
      *stores->front(), {}, []() -> absl::StatusOr<std::unique_ptr<Engine>> {
        return absl::InternalError("not needed");
      });
  ASSERT_THAT(engine, IsOk());
  EXPECT_EQ((*engine)->name(), "shared_memory");
}

}  // namespace
}  // namespace tessera::collectives
