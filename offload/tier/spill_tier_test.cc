#include "offload/tier/spill_tier.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"
#include "offload/tier/testing/tier_model.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

using Bytes = std::vector<std::byte>;

std::shared_ptr<MemoryTier> Host(const char* name, int64_t budget) {
  return std::make_shared<HostTier>(std::make_shared<Accounting>(name, budget));
}

std::shared_ptr<MemoryTier> File(int64_t budget = kUnlimited) {
  auto file = FileTier::Create(std::make_shared<Accounting>("file", budget),
                               {.path = ::testing::TempDir()});
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

Bytes Read(MemoryTier& tier, const std::string& key) {
  const auto stat = tier.Stat(key);
  EXPECT_TRUE(stat.ok()) << stat.status();
  Bytes bytes(stat.ok() ? static_cast<size_t>(stat->bytes) : 0);
  EXPECT_THAT(tier.Get(key, bytes), IsOk());
  return bytes;
}

MemoryReading Used(int64_t used) {
  MemoryReading reading;
  reading.limits.push_back({.source = "job", .used = used, .limit = 1000});
  return reading;
}

class SpillTierTest : public ::testing::Test {
 protected:
  void Put(const std::string& key, size_t bytes) {
    EXPECT_THAT(tier_.Put(key, PatternBytes(bytes, bytes), {}), IsOk()) << key;
  }
  void ExpectAll(const std::map<std::string, size_t>& blocks) {
    for (const auto& [key, bytes] : blocks) {
      EXPECT_EQ(Read(tier_, key), PatternBytes(bytes, bytes)) << key;
    }
    EXPECT_EQ(tier_.Keys().size(), blocks.size());
  }

  const std::shared_ptr<MemoryTier> near_ = Host("host", 1000);
  const std::shared_ptr<MemoryTier> far_ = File(5000);
  SpillTier tier_{near_, far_};
};

TEST_F(SpillTierTest, NewBlocksGoFarIfNearIsFull) {
  EXPECT_EQ(tier_.name(), "host over file");
  Put("a", 600);
  Put("b", 500);
  Put("c", 400);
  EXPECT_THAT(near_->Keys(), UnorderedElementsAre("a", "c"));
  EXPECT_THAT(far_->Keys(), UnorderedElementsAre("b"));
  TESSERA_EXPECT_OK(tier_.Map("a"));
  EXPECT_THAT(tier_.Map("b"), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(tier_.MapNew("d", 10, {}),
              StatusIs(absl::StatusCode::kUnimplemented));
  ExpectAll({{"a", 600}, {"b", 500}, {"c", 400}});
  // A block stays in its tier, even if the near one has room again.
  TESSERA_ASSERT_OK(tier_.Drop("a"));
  Put("b", 500);
  EXPECT_THAT(far_->Keys(), UnorderedElementsAre("b"));
  ASSERT_EQ(tier_.usage().size(), 2u);
  EXPECT_EQ(tier_.usage()[0].usage.current, 400);
  EXPECT_EQ(tier_.usage()[1].usage.current, 500);
}

TEST_F(SpillTierTest, BlockThatOutgrowsNearMovesFar) {
  Put("a", 600);
  Put("a", 700);  // The near tier has no room for both versions.
  EXPECT_THAT(near_->Keys(), UnorderedElementsAre());
  ExpectAll({{"a", 700}});
}

TEST_F(SpillTierTest, NamesBothBudgetsIfBothAreExhausted) {
  Put("a", 900);
  EXPECT_THAT(tier_.Put("b", Bytes(6000), {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("\"b\""), HasSubstr("6000 bytes"),
                             HasSubstr("budget of 1000"),
                             HasSubstr("budget of 5000"))));
  EXPECT_THAT(tier_.Put("a", Bytes(6000), {}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ExpectAll({{"a", 900}});
}

TEST_F(SpillTierTest, SpillsLargestUnusedBlocks) {
  for (const size_t bytes : {100, 300, 200, 150}) {
    Put(std::to_string(bytes), bytes);
  }
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const BlockView first, tier_.Map("300"));
    TESSERA_ASSERT_OK_AND_ASSIGN(BlockView second, tier_.Map("300"));
    second = {};  // The first view still holds the block.
    EXPECT_THAT(tier_.Spill(201), IsOkAndHolds(350));
    EXPECT_THAT(near_->Keys(), UnorderedElementsAre("100", "300"));
  }
  EXPECT_THAT(tier_.Spill(0), IsOkAndHolds(0));
  EXPECT_THAT(tier_.Spill(1000), IsOkAndHolds(400));
  EXPECT_THAT(near_->Keys(), UnorderedElementsAre());
  ExpectAll({{"100", 100}, {"300", 300}, {"200", 200}, {"150", 150}});
}

TEST_F(SpillTierTest, FailedSpillLosesNothing) {
  TESSERA_ASSERT_OK(far_->Put("other", Bytes(4900), {}));
  Put("a", 600);
  EXPECT_THAT(tier_.Spill(1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("moving block \"a\" to tier file")));
  EXPECT_THAT(near_->Keys(), UnorderedElementsAre("a"));
  EXPECT_EQ(Read(tier_, "a"), PatternBytes(600, 600));
}

TEST_F(SpillTierTest, RelievesAtTheThresholdOfThePolicy) {
  for (const size_t bytes : {100, 300, 200}) Put(std::to_string(bytes), bytes);
  const PressurePolicy& balanced =
      PressurePolicy::Of(PressureStrategy::kBalanced);
  EXPECT_THAT(tier_.Relieve(balanced, Used(749)), IsOkAndHolds(0));
  Put("before", 50);
  // Half of 650 bytes.
  EXPECT_THAT(tier_.Relieve(balanced, Used(750)), IsOkAndHolds(500));
  EXPECT_THAT(near_->Keys(), UnorderedElementsAre("100", "before"));
  // New blocks follow until the pressure has fallen.
  Put("during", 10);
  EXPECT_TRUE(far_->Contains("during"));
  EXPECT_THAT(tier_.MapNew("view", 10, {}),
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(tier_.Relieve(balanced, Used(600)), IsOkAndHolds(0));
  Put("after", 20);
  EXPECT_TRUE(near_->Contains("after"));
  ExpectAll({{"100", 100},
             {"300", 300},
             {"200", 200},
             {"before", 50},
             {"during", 10},
             {"after", 20}});
}

// Random operations with blocks that move between them.
TEST(SpillTierModelTest, EqualsMapWhileBlocksSpill) {
  const TierCase spilling = {"Spilling",
                             [](int64_t) {
                               return std::make_shared<SpillTier>(
                                   Host("host", 20000), File());
                             },
                             /*exact=*/false, nullptr};
  std::shared_ptr<SpillTier> tier;
  TierCase shared = spilling;
  shared.make = [&](int64_t budget) {
    return tier = std::static_pointer_cast<SpillTier>(spilling.make(budget));
  };
  TierModel model(shared, kUnlimited, /*seed=*/3);
  std::mt19937_64 random(4);
  for (int step = 0; step < 1000; ++step) {
    model.Step();
    if (random() % 8 != 0) continue;
    TESSERA_ASSERT_OK(tier->Spill(static_cast<int64_t>(random() % 20000)));
    model.CompareAll();
  }
  model.DropAll();
  EXPECT_TRUE(tier->Keys().empty());
}

// Readers find the whole block wherever it is at the moment.
TEST(SpillTierThreadsTest, ReadersFindBlocksThatMove) {
  SpillTier tier(Host("host", 40000), File());
  std::atomic<int> failures = 0;
  std::atomic<bool> done = false;
  std::thread mover([&] {
    while (!done) failures += !tier.Spill(10000).ok();
  });
  const auto work = [&](int t) {
    Bytes got(9000);
    for (int i = 0; i < 60; ++i) {
      const std::string key = std::to_string(t * 100 + i);
      failures += !tier.Put("shared", Bytes(9000, std::byte(i)), {}).ok();
      failures += !tier.Get("shared", got).ok();
      failures += std::count(got.begin(), got.end(), got[0]) != 9000;
      failures += !tier.Put(key, PatternBytes(9000, t), {}).ok();
      failures += !tier.Get(key, got).ok() || got != PatternBytes(9000, t);
      failures += !tier.Drop(key).ok();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  done = true;
  mover.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(tier.Keys(), std::vector<std::string>{"shared"});
}

}  // namespace
}  // namespace tessera::offload
