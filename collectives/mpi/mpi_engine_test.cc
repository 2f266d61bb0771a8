// Run by every rank of an MPI job (mpi_test.sh): the engine checks on groups of
// all sizes.
#include "collectives/mpi/mpi_engine.h"

#include <cstdio>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/testing/engine_checks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Engine> world;
uint32_t group_number = 100;

std::vector<Rank> FirstRanks(int64_t count) {
  std::vector<Rank> ranks;
  for (int64_t r = 0; r < count; ++r) ranks.push_back(Rank(r));
  return ranks;
}

// The group of the first `count` ranks of `parent`; null on other ranks.
std::unique_ptr<Engine> Group(Engine& parent, const std::vector<Rank>& ranks) {
  const uint32_t number = ++group_number;
  if (std::find(ranks.begin(), ranks.end(), parent.rank()) == ranks.end()) {
    return nullptr;
  }
  auto engine =
      parent.CreateSubgroup(ranks, number, MonotonicNanos() + 60'000'000'000);
  EXPECT_THAT(engine, IsOk());
  return engine.ok() ? *std::move(engine) : nullptr;
}

template <typename Check>
void OnEveryGroup(Engine& parent, const Check& check) {
  for (int64_t n = 1; n <= parent.size(); ++n) {
    const auto engine = Group(parent, FirstRanks(n));
    if (engine != nullptr) check(*engine);
  }
}

TEST(MpiEngineTest, CollectivesOnGroupsOfEverySize) {
  OnEveryGroup(*world, [](Engine& engine) {
    CheckCollectives(engine, {.counts = {0, 1, 1001}});
  });
}

TEST(MpiEngineTest, MessagesOnGroupsOfEverySize) {
  OnEveryGroup(*world, [](Engine& engine) { CheckMessages(engine); });
}

TEST(MpiEngineTest, LargeCountsGoInPieces) {
  MpiOptions options;
  options.largest_count = 100;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto engine, CreateMpiEngine(options));
  OnEveryGroup(*engine, [](Engine& part) {
    CheckCollectives(part, {.counts = {0, 31, 331}, .large_counts = {}});
  });
  options.largest_count = 1999;  // In bytes of a message.
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, CreateMpiEngine(options));
  CheckMessages(*other);
}

TEST(MpiEngineTest, BlockingCallsGiveTheSame) {
  MpiOptions options;
  options.blocking = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto engine, CreateMpiEngine(options));
  CheckCollectives(*engine, {.counts = {1, 1001}, .large_counts = {70'001}});
}

TEST(MpiEngineTest, CheckedCallsGiveTheSame) {
  MpiOptions options;
  options.check_signatures = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto engine, CreateMpiEngine(options));
  CheckCollectives(*engine, {.counts = {0, 1, 1001}, .large_counts = {}});
  CheckMessages(*engine);
}

TEST(MpiEngineTest, GroupKeepsGivenRankOrder) {
  std::vector<Rank> ranks = FirstRanks(world->size());
  std::reverse(ranks.begin(), ranks.end());
  const auto engine = Group(*world, ranks);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->rank(), Rank(world->size() - 1 - world->rank().value()));
  CheckCollectives(*engine, {.counts = {7}, .large_counts = {}});
  const auto peers = world->Peers(), reversed = engine->Peers();
  EXPECT_EQ(peers.front().pid, reversed.back().pid);
}

TEST(MpiEngineTest, ManyGroupsComeAndGo) {
  for (int i = 0; i < 300; ++i) {
    const auto engine = Group(*world, FirstRanks(world->size()));
    ASSERT_NE(engine, nullptr);
  }
  std::vector<std::unique_ptr<Engine>> live;
  for (int i = 0; i < 100; ++i) {
    live.push_back(Group(*world, FirstRanks(world->size())));
    ASSERT_NE(live.back(), nullptr);
  }
  for (const auto& engine : live) {
    ASSERT_THAT(Caller(*engine).Run(BarrierOf()), IsOk());
  }
}

TEST(MpiEngineTest, GroupsAndMessagesOfSeveralThreadsRunAtOnce) {
  const auto other = Group(*world, FirstRanks(world->size()));
  ASSERT_NE(other, nullptr);
  std::thread beside(
      [&] { CheckCollectives(*other, {.counts = {7}, .large_counts = {}}); });
  CheckMessages(*world);
  CheckCollectives(*world, {.counts = {7}, .large_counts = {}});
  beside.join();
}

TEST(MpiEngineTest, IsCreatedByName) {
  EngineSetup setup{.rank = world->rank(), .size = world->size()};
  setup.options = {{"blocking", "true"}, {"timeout", "60s"}};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto engine, CreateEngine("mpi", setup));
  EXPECT_THAT(Caller(*engine).Run(BarrierOf()), IsOk());
  ++setup.size;
  EXPECT_THAT(
      CreateEngine("mpi", setup),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("mpirun")));
}

TEST(MpiEngineTest, ReportsPeers) {
  EXPECT_EQ(world->name(), "mpi");
  const auto peers = world->Peers();
  ASSERT_EQ(static_cast<int64_t>(peers.size()), world->size());
  for (int64_t r = 0; r < world->size(); ++r) {
    const PeerReport& peer = peers[static_cast<size_t>(r)];
    EXPECT_EQ(peer.rank, Rank(r));
    EXPECT_GT(peer.pid, 0);
    EXPECT_FALSE(peer.host.empty());
    EXPECT_EQ(peer.state, PeerState::kUnknown);
  }
  EXPECT_THAT(world->AllocateShared(100), IsOk());
}

TEST(MpiEngineTest, RejectsInvalidOptions) {
  MpiOptions options;
  options.largest_count = 0;
  EXPECT_THAT(CreateMpiEngine(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("largest_count is 0")));
  options = {};
  options.timeout = absl::ZeroDuration();
  EXPECT_THAT(
      CreateMpiEngine(options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout is 0")));
}

}  // namespace
}  // namespace tessera::collectives

int main(int argc, char** argv) {
  using tessera::collectives::world;
  ::testing::InitGoogleTest(&argc, argv);
  auto engine = tessera::collectives::CreateMpiEngine();
  if (!engine.ok()) {
    std::printf("%s\n", engine.status().ToString().c_str());
    return 1;
  }
  world = *std::move(engine);
  const int failed = RUN_ALL_TESTS();
  if (failed == 0) {
    std::printf("rank %d passed\n", static_cast<int>(world->rank().value()));
  }
  world.reset();
  return failed;
}
