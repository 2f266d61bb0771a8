#include "offload/prefetch/prefetcher.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/prefetch/testing/slow_tier.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kBlock = 4096;

void Fill(std::span<std::byte> block, int value) {
  std::memset(block.data(), value, block.size());
}

int ValueOf(std::span<const std::byte> block) {
  for (const std::byte b : block) {
    if (b != block[0]) return -1;
  }
  return std::to_integer<int>(block[0]);
}

// "a" is filled with 'a', and so on.
void PutBlocks(MemoryTier& tier, std::string_view keys,
               int64_t bytes = kBlock) {
  std::vector<std::byte> block(static_cast<size_t>(bytes));
  for (const char key : keys) {
    Fill(block, key);
    TESSERA_ASSERT_OK(tier.Put(std::string(1, key), block,
                               {Purpose::kParameters, DType::kBF16}));
  }
}

std::unique_ptr<Prefetcher> Make(MemoryTier& tier, int64_t blocks,
                                 PrefetchOptions options = {}) {
  options.budget = blocks * kBlock;
  return *Prefetcher::Create(tier, std::move(options));
}

std::vector<std::string> Keys(std::string_view keys) {
  std::vector<std::string> out;
  for (const char key : keys) out.emplace_back(1, key);
  return out;
}

// Uses the blocks one after another.
StepReport RunStep(Prefetcher& prefetcher, std::string_view keys,
                   int64_t compute_ns = 0) {
  TESSERA_EXPECT_OK(prefetcher.BeginStep());
  for (const char key : keys) {
    const auto block = prefetcher.Use(std::string(1, key));
    EXPECT_THAT(block, IsOk());
    if (!block.ok()) continue;
    EXPECT_EQ(ValueOf(*block), key);
    if (compute_ns > 0) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(compute_ns));
    }
    TESSERA_EXPECT_OK(prefetcher.Done(std::string(1, key)));
  }
  return *prefetcher.EndStep();
}

TEST(PrefetcherTest, RecordsOrderInFirstStep) {
  SlowTier tier({});
  PutBlocks(tier, "abcdef");
  const auto prefetcher = Make(tier, 3);
  const StepReport first = RunStep(*prefetcher, "abcdef", 1'000'000);
  EXPECT_FALSE(first.planned);
  EXPECT_EQ(first.missing, 6);
  EXPECT_EQ(first.bytes_loaded, 6 * kBlock);
  EXPECT_EQ(prefetcher->recorded().size(), 6u);
  EXPECT_GE(prefetcher->recorded()[2].compute_ns, 1'000'000);
  const StepReport second = RunStep(*prefetcher, "abcdef", 5'000'000);
  EXPECT_TRUE(second.planned);
  TESSERA_EXPECT_OK(second.plan_status);
  EXPECT_EQ(second.uses, 6);
  EXPECT_EQ(second.hits + second.late + second.missing, 6);
  EXPECT_GE(second.hits, 3);
  EXPECT_EQ(second.deviations, 0);
  EXPECT_LE(second.bytes_loaded, 6 * kBlock);
  EXPECT_LE(second.bound_ns, second.step_ns);
  EXPECT_GT(second.load_bytes_per_second, 0);
}

TEST(PrefetcherTest, FollowsAGivenOrderFromTheFirstStep) {
  SlowTier tier({});
  PutBlocks(tier, "abcd");
  const auto prefetcher = Make(tier, 4);
  TESSERA_ASSERT_OK(prefetcher->BeginStep(Keys("abcd")));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  for (const std::string& key : Keys("abcd")) {
    TESSERA_ASSERT_OK(prefetcher->Use(key));
    TESSERA_ASSERT_OK(prefetcher->Done(key));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const StepReport report, prefetcher->EndStep());
  EXPECT_TRUE(report.planned);
  EXPECT_EQ(report.missing, 0);
  EXPECT_EQ(report.hits + report.late, 4);
  EXPECT_THAT(tier.starts(), ElementsAre("put a", "put b", "put c", "put d",
                                         "get a", "get b", "get c", "get d"));
}

TEST(PrefetcherTest, EvictsTheFarthestNextUse) {
  SlowTier tier({});
  PutBlocks(tier, "abcdefgh");
  const auto prefetcher = Make(tier, 4);
  const std::string order = "abcdefghgfedcba";
  for (int i = 0; i < 2; ++i) RunStep(*prefetcher, order);
  const StepReport report = RunStep(*prefetcher, order, 2'000'000);
  // 4 of 8 blocks fit: at least 4 loads forward, 4 backward.
  EXPECT_LE(report.bytes_loaded, 10 * kBlock);
  EXPECT_EQ(report.missing, 0);
}

TEST(PrefetcherTest, DirtyBlocksAreStoredWithPurposeAndDtype) {
  SlowTier tier({});
  PutBlocks(tier, "abcd");
  const auto prefetcher = Make(tier, 2);
  for (int step = 0; step < 3; ++step) {
    TESSERA_ASSERT_OK(prefetcher->BeginStep());
    for (const char c : std::string("abcd")) {
      const std::string key(1, c);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto block, prefetcher->Use(key));
      EXPECT_EQ(ValueOf(block), c + step);
      Fill(block, c + step + 1);
      TESSERA_ASSERT_OK(prefetcher->Done(key, /*dirty=*/true));
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const StepReport report,
                                 prefetcher->EndStep());
    TESSERA_EXPECT_OK(report.store_status);
    if (step > 0) {
      EXPECT_GE(report.bytes_stored, 2 * kBlock);
    }
  }
  TESSERA_ASSERT_OK(prefetcher->Flush());
  for (const char c : std::string("abcd")) {
    std::vector<std::byte> block(kBlock);
    TESSERA_ASSERT_OK(tier.Get(std::string(1, c), block));
    EXPECT_EQ(ValueOf(block), c + 3);
    EXPECT_EQ(tier.Stat(std::string(1, c))->info,
              (BlockInfo{Purpose::kParameters, DType::kBF16}));
  }
}

TEST(PrefetcherTest, ServesReportsAndRecordsAnotherOrder) {
  SlowTier tier({});
  PutBlocks(tier, "abcdefxy");
  const auto prefetcher = Make(tier, 3);
  for (int i = 0; i < 2; ++i) RunStep(*prefetcher, "abcdef");
  // Skips c, adds x twice, ends early.
  const StepReport report = RunStep(*prefetcher, "abdxxe");
  EXPECT_TRUE(report.planned);
  EXPECT_EQ(report.deviations, 4);
  const StepReport next = RunStep(*prefetcher, "abdxxe");
  EXPECT_EQ(next.deviations, 0);
  const StepReport other = RunStep(*prefetcher, "yfedcba");
  EXPECT_GT(other.deviations, 0);
  EXPECT_EQ(other.uses, 7);
}

TEST(PrefetcherTest, LoadsAnnouncedBlocksInOrderWithoutPlan) {
  SlowTier tier({.lanes = 1});
  PutBlocks(tier, "abcdef");
  const auto prefetcher = Make(tier, 3);
  tier.ForgetStarts();
  for (const char* key : {"a", "b", "c", "d", "unknown"}) {
    prefetcher->Announce(key);
  }
  std::string used;
  for (const char* key : {"a", "b", "c", "d"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto block, prefetcher->Use(key));
    EXPECT_EQ(ValueOf(block), key[0]);
    TESSERA_ASSERT_OK(prefetcher->Done(key));
  }
  // Each once: no announced block was evicted before its use.
  EXPECT_THAT(tier.starts(), ElementsAre("get a", "get b", "get c", "get d"));
  const auto quiet = Make(tier, 3, {.prefetch = false});
  tier.ForgetStarts();
  quiet->Announce("a");
  TESSERA_ASSERT_OK(quiet->Use("b"));
  EXPECT_THAT(tier.starts(), ElementsAre("get b"));
  TESSERA_ASSERT_OK(quiet->Done("b"));
}

// Blocks written forward are read backward: a block is near when its load is
// next in the plan, but must first be evicted for others.
TEST(PrefetcherTest, ReloadsBlocksEvictedForOverwrites) {
  SlowTier tier({});
  PutBlocks(tier, "abcdef");
  const auto prefetcher = Make(tier, 3);
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    TESSERA_ASSERT_OK(prefetcher->BeginStep());
    for (const std::string& key : Keys("abcdef")) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const auto block,
          prefetcher->Use(key, Prefetcher::Access::kOverwrite));
      Fill(block, key[0] + step);
      TESSERA_ASSERT_OK(prefetcher->Done(key, /*dirty=*/true));
    }
    for (const std::string& key : Keys("fedcba")) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto block, prefetcher->Use(key));
      EXPECT_EQ(ValueOf(block), key[0] + step);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      TESSERA_ASSERT_OK(prefetcher->Done(key));
      TESSERA_ASSERT_OK(prefetcher->Invalidate(key));
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const StepReport report,
                                 prefetcher->EndStep());
    if (step == 0) continue;
    // Overwritten blocks are never near; blocks that are read always are.
    EXPECT_TRUE(report.planned);
    EXPECT_EQ(report.missing, 6);
    EXPECT_EQ(report.bytes_loaded, 3 * kBlock);
  }
}

TEST(PrefetcherTest, UsesOutsideOfAStepAreNotRecorded) {
  SlowTier tier({});
  PutBlocks(tier, "abcdef");
  const auto prefetcher = Make(tier, 2);
  EXPECT_EQ(RunStep(*prefetcher, "abc").uses, 3);
  for (const char* key : {"f", "e", "a"}) {
    TESSERA_ASSERT_OK(prefetcher->Use(key));
    TESSERA_ASSERT_OK(prefetcher->Done(key));
  }
  const StepReport report = RunStep(*prefetcher, "abc");
  EXPECT_TRUE(report.planned);
  EXPECT_EQ(report.deviations, 0);
  EXPECT_GE(report.bound_ns, report.compute_ns);
  EXPECT_EQ(report.least_stall_ns(), report.bound_ns - report.compute_ns);
}

TEST(PrefetcherTest, DemandLoadOvertakesPrefetch) {
  SlowTier tier({.lanes = 1});
  PutBlocks(tier, "abcdefghz");
  const auto prefetcher = Make(tier, 9, {.most_loads = 2});
  tier.ForgetStarts();
  tier.Hold(true);
  TESSERA_ASSERT_OK(prefetcher->BeginStep(Keys("abcdefgh")));
  std::thread release([&tier] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    tier.Hold(false);
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto block, prefetcher->Use("z"));
  release.join();
  EXPECT_EQ(ValueOf(block), 'z');
  TESSERA_ASSERT_OK(prefetcher->Done("z"));
  const std::vector<std::string> starts = tier.starts();
  const auto at = std::find(starts.begin(), starts.end(), "get z");
  // Two were in flight.
  EXPECT_LE(at - starts.begin(), 2);
}

TEST(PrefetcherTest, OverlapsLoadsWithCompute) {
  constexpr int64_t kLoadNs = 4'000'000;
  SlowTier tier({.bytes_per_second = kBlock * 1'000'000'000 / kLoadNs});
  const std::string order = "abcdefghijklmnopqrst";
  PutBlocks(tier, order);
  PrefetchOptions options;
  options.load_bytes_per_second = kBlock * 1'000'000'000 / kLoadNs;
  const auto with = Make(tier, 6, options);
  options.prefetch = false;
  const auto without = Make(tier, 6, options);
  double best = 0, speedup = 0;
  for (int i = 0; i < 4; ++i) {
    const StepReport slow = RunStep(*without, order, kLoadNs);
    const StepReport fast = RunStep(*with, order, kLoadNs);
    best = std::max(best, fast.share_of_bound());
    speedup = std::max(speedup, static_cast<double>(slow.step_ns) /
                                    static_cast<double>(fast.step_ns));
    EXPECT_LE(fast.share_of_bound(), 1.02);
  }
  EXPECT_GT(best, 0.8);
  EXPECT_GT(speedup, 1.4);
}

TEST(PrefetcherTest, KeepsSeveralLoadsInFlight) {
  SlowTier tier({.latency_ns = 2'000'000, .lanes = 16});
  std::string order;
  for (char c = 'A'; c <= 'z'; ++c) order.push_back(c);
  PutBlocks(tier, order, 64);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto prefetcher,
      Prefetcher::Create(tier, {.budget = 64 * 24, .most_loads = 6}));
  for (int i = 0; i < 3; ++i) RunStep(*prefetcher, order);
  EXPECT_GE(tier.most_in_flight(), 6);
  // A missing block is loaded beyond the limit.
  EXPECT_LE(tier.most_in_flight(), 7);
}

// Work of a device that ends when the test says so.
class Gate final : public EventState {
 public:
  absl::StatusOr<bool> Test() override { return opened_.HasBeenNotified(); }
  absl::Status Wait() override {
    opened_.WaitForNotification();
    return absl::OkStatus();
  }
  void Open() { opened_.Notify(); }

 private:
  absl::Notification opened_;
};

int FarValueOf(MemoryTier& tier, std::string_view key) {
  std::vector<std::byte> block(kBlock);
  TESSERA_EXPECT_OK(tier.Get(key, block));
  return ValueOf(block);
}

TEST(PrefetcherTest, StoresBlockAfterDeviceWork) {
  SlowTier tier({});
  PutBlocks(tier, "a");
  const auto prefetcher = Make(tier, 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::span<std::byte> block,
                               prefetcher->Use("a"));
  const auto gate = std::make_shared<Gate>();
  TESSERA_ASSERT_OK(prefetcher->Done("a", /*dirty=*/true, Event(gate)));
  std::thread flush([&] { TESSERA_EXPECT_OK(prefetcher->Flush()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(FarValueOf(tier, "a"), 'a');
  Fill(block, 'A');
  gate->Open();
  flush.join();
  EXPECT_EQ(FarValueOf(tier, "a"), 'A');
}

TEST(PrefetcherTest, OverwritesMemoryAfterDeviceWork) {
  SlowTier tier({});
  PutBlocks(tier, "ab");
  const auto prefetcher = Make(tier, 1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::span<std::byte> block,
                               prefetcher->Use("a"));
  const auto gate = std::make_shared<Gate>();
  TESSERA_ASSERT_OK(prefetcher->Done("a", /*dirty=*/false, Event(gate)));
  std::thread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(ValueOf(block), 'a');
    gate->Open();
  });
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::span<std::byte> other,
                               prefetcher->Use("b"));
  EXPECT_TRUE(*gate->Test());
  EXPECT_EQ(ValueOf(other), 'b');
  opens.join();
  TESSERA_EXPECT_OK(prefetcher->Done("b"));
}

}  // namespace
}  // namespace tessera::offload
