#include "collectives/counting/counting_engine.h"

#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Memory = CountingMemory;

// The number, bytes and largest bytes of the operations of each kind.
using Counts = std::map<OpKind, std::vector<int64_t>>;

Counts CountsOf(const StatisticsTable& statistics) {
  Counts counts;
  for (const auto& [key, totals] : statistics) {
    counts[key.first] = {totals.count, totals.bytes, totals.largest_bytes};
  }
  return counts;
}

// The test crashes if the memory is accessed.
class CountingEngineTest : public ::testing::Test {
 protected:
  std::unique_ptr<Communicator> World(int64_t rank, int64_t ranks) {
    auto engine = CreateCountingEngine(
        {.rank = Rank(rank), .ranks = ranks, .memory = memory_});
    return *Communicator::Create(*std::move(engine));
  }
  tessera::Buffer Counted(int64_t floats) {
    return *tessera::Buffer::Allocate(memory_, static_cast<size_t>(4 * floats));
  }
  static Buffer Floats(tessera::Buffer& memory, int64_t first, int64_t count) {
    return Buffer(memory.data() + 4 * first, count, DType::kF32);
  }

  const std::shared_ptr<Memory> memory_ =
      std::make_shared<Memory>(Memory::Access::kTrapped);
};

TEST_F(CountingEngineTest, CountsWithoutTouchingCountedMemory) {
  const auto world = World(5, 8);
  tessera::Buffer all = Counted(8000);
  for (int i = 1; i <= 3; ++i) {
    TESSERA_ASSERT_OK(
        world->AllGather(Floats(all, 5000, 1000), Floats(all, 0, 8000)));
  }
  TESSERA_ASSERT_OK(
      world->AllReduce(Floats(all, 0, 100), Reduction::Average()));
  TESSERA_ASSERT_OK(world->AllReduce(Floats(all, 0, 50), Reduction::Sum()));
  TESSERA_ASSERT_OK(world->ReduceScatter(
      Floats(all, 0, 8000), Floats(all, 5000, 1000), Reduction::Sum()));
  TESSERA_ASSERT_OK(world->Send(Floats(all, 0, 7), Rank(6)));
  TESSERA_ASSERT_OK(world->Receive(Floats(all, 0, 9), Rank(4)));
  TESSERA_ASSERT_OK(world->Barrier());
  const Counts expected = {{OpKind::kAllGather, {3, 96000, 32000}},
                           {OpKind::kAllReduce, {2, 600, 400}},
                           {OpKind::kReduceScatter, {1, 32000, 32000}},
                           {OpKind::kBarrier, {1, 0, 0}},
                           {OpKind::kSend, {1, 28, 28}},
                           {OpKind::kReceive, {1, 36, 36}}};
  EXPECT_EQ(CountsOf(world->Statistics()), expected);
}

// Ranks that compare their values must find them equal.
TEST_F(CountingEngineTest, OtherRanksContributeSameValues) {
  const auto world = World(2, 4);
  const std::vector<int64_t> mine = {7, 9};
  std::vector<int64_t> all(8, -1);
  TESSERA_ASSERT_OK(
      world->AllGather(ConstBuffer(std::span(mine)), Buffer(std::span(all))));
  EXPECT_THAT(all, ElementsAre(7, 9, 7, 9, 7, 9, 7, 9));
  TESSERA_ASSERT_OK(world->AllReduce(Buffer(std::span(all)), Reduction::Sum()));
  EXPECT_EQ(all[0], 7);
  std::vector<int64_t> out(2, -1);
  TESSERA_ASSERT_OK(world->ReduceScatter(
      ConstBuffer(std::span(all)), Buffer(std::span(out)), Reduction::Sum()));
  EXPECT_THAT(out, ElementsAre(7, 9));
  out = {3, 4};
  TESSERA_ASSERT_OK(world->Broadcast(Buffer(std::span(out)), Rank(0)));
  EXPECT_THAT(out, ElementsAre(3, 4));
  std::vector<int64_t> uneven(6, -1);
  const int64_t counts[] = {1, 2, 2, 1};
  TESSERA_ASSERT_OK(world->AllGatherUneven(ConstBuffer(std::span(mine)),
                                           Buffer(std::span(uneven)), counts));
  EXPECT_THAT(uneven, ElementsAre(7, 7, 9, 7, 9, 7));
}

TEST_F(CountingEngineTest, CountsSubgroupsSeparately) {
  const auto world = World(5, 8);
  const std::vector<Rank> odd = {Rank(7), Rank(5), Rank(3), Rank(1)};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto group, world->Subgroup(odd));
  EXPECT_EQ(group->rank(), Rank(1));
  const std::vector<Rank> two = {Rank(1), Rank(3)};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto pair, group->Subgroup(two));
  EXPECT_EQ(pair->rank(), Rank(0));
  TESSERA_ASSERT_OK(pair->Barrier());
  // All ranks report this rank's colour.
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto split, world->Split(3, 0));
  EXPECT_EQ(split->size(), 8);
  const Counts barrier = {{OpKind::kBarrier, {1, 0, 0}}};
  EXPECT_EQ(CountsOf(pair->Statistics()), barrier);
  EXPECT_TRUE(group->Statistics().empty());
  EXPECT_EQ(CountsOf(group->StatisticsWithSubgroups()), barrier);
}

TEST_F(CountingEngineTest, StartedMessagesCompleteOnWait) {
  const auto world = World(0, 2);
  tessera::Buffer memory = Counted(100);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Work sent, world->Start(SendOf(Floats(memory, 0, 50), Rank(1))));
  EXPECT_THAT(sent.Test(), IsOkAndHolds(false));
  TESSERA_ASSERT_OK(sent.WaitFor(absl::Nanoseconds(1)));
  EXPECT_THAT(sent.Test(), IsOkAndHolds(true));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Work summed,
      world->Start(AllReduceOf(Floats(memory, 0, 50), Floats(memory, 0, 50),
                               Reduction::Sum())));
  EXPECT_THAT(summed.Test(), IsOkAndHolds(true));
  TESSERA_ASSERT_OK(summed.Wait());
}

TEST_F(CountingEngineTest, SharedMemoryIsCounted) {
  const auto world = World(0, 2);
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto a, world->AllocateShared(1000));
    EXPECT_TRUE(memory_->Owns(a->bytes().data()));
    EXPECT_EQ(memory_->live_bytes(), 1000);
  }
  EXPECT_EQ(memory_->live_bytes(), 0);
  EXPECT_THAT(world->AllocateShared(-1),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// The same program has the same counts on real and on counted ranks.
TEST_F(CountingEngineTest, MatchesCountsOfRealGroup) {
  const auto program = [](Communicator& world, std::span<float> values) {
    const int64_t n = world.size();
    const Buffer all(values.first(static_cast<size_t>(12 * n)));
    const Buffer own = all.Slice(12 * world.rank().value(), 12);
    TESSERA_RETURN_IF_ERROR(world.AllGather(own, all));
    TESSERA_RETURN_IF_ERROR(world.AllReduce(all, Reduction::Sum()));
    TESSERA_RETURN_IF_ERROR(world.ReduceScatter(all, own, Reduction::Sum()));
    TESSERA_RETURN_IF_ERROR(world.Broadcast(own, Rank(1)));
    TESSERA_ASSIGN_OR_RETURN(const auto half,
                             world.Split(world.rank().value() % 2, 0));
    return world.SendReceive(
        own, Rank((world.rank().value() + 1) % n),
        all.Slice(12 * ((world.rank().value() + 1) % n), 12),
        Rank((world.rank().value() + n - 1) % n));
  };
  const auto totals = [](const Communicator& world) {
    std::map<OpKind, std::pair<int64_t, int64_t>> all;
    for (const auto& [key, one] : world.Statistics()) {
      all[key.first].first += one.count;
      all[key.first].second += one.bytes;
    }
    return all;
  };
  constexpr int64_t kRanks = 3;
  auto engines = *CreateInProcessEngines(kRanks);
  std::vector<std::map<OpKind, std::pair<int64_t, int64_t>>> real(kRanks);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto world,
                                   Communicator::Create(std::move(engines[r])));
      std::vector<float> values(12 * kRanks, 1.0f);
      TESSERA_EXPECT_OK(program(*world, values));
      real[r] = totals(*world);
      TESSERA_EXPECT_OK(world->Barrier());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t r = 0; r < kRanks; ++r) {
    const auto world = World(r, kRanks);
    tessera::Buffer memory = Counted(12 * kRanks);
    TESSERA_ASSERT_OK(program(*world, {reinterpret_cast<float*>(memory.data()),
                                       static_cast<size_t>(12 * kRanks)}));
    EXPECT_EQ(totals(*world), real[static_cast<size_t>(r)]);
  }
}

TEST_F(CountingEngineTest, RejectsInvalidRanks) {
  for (const int64_t rank : {-1, 4}) {
    EXPECT_THAT(CreateCountingEngine(
                    {.rank = Rank(rank), .ranks = 4, .memory = memory_}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("of a world of 4")));
  }
  EXPECT_THAT(
      CreateCountingEngine({.rank = Rank(0)}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs memory")));
}

}  // namespace
}  // namespace tessera::collectives
