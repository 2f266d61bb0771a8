#include "tools/train/report/tier_log.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "collectives/engine/operation_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "tools/train/report/step_activity.h"

namespace tessera::train {
namespace {

using collectives::MonotonicNanos;
using offload::BlockInfo;
using offload::Operation;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr int64_t kMilli = 1'000'000;

// Delays every Put, on its own thread.
class SlowTier final : public offload::MemoryTier {
 public:
  explicit SlowTier(int64_t ms) : ms_(ms) {}
  ~SlowTier() override {
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return inner_.name(); }
  Operation StartPut(std::string_view key, std::span<const std::byte> bytes,
                     BlockInfo info) override {
    auto [operation, completion] = Operation::Pending();
    threads_.emplace_back(
        [this, key = std::string(key), bytes, info, done = completion] {
          std::this_thread::sleep_for(std::chrono::milliseconds(ms_));
          done.Finish(inner_.Put(key, bytes, info));
        });
    return std::move(operation);
  }
  absl::Status Drop(std::string_view key) override { return inner_.Drop(key); }
  absl::StatusOr<offload::BlockStat> Stat(std::string_view key) const override {
    return inner_.Stat(key);
  }
  std::vector<std::string> Keys() const override { return inner_.Keys(); }
  std::vector<offload::TierUsage> usage() const override {
    return inner_.usage();
  }

 protected:
  Operation StartRead(std::string_view key, std::optional<int64_t> offset,
                      std::span<std::byte> out) override {
    return offset ? inner_.StartGetRange(key, *offset, out)
                  : inner_.StartGet(key, out);
  }

 private:
  offload::HostTier inner_{
      std::make_shared<offload::Accounting>("host", offload::kUnlimited)};
  const int64_t ms_;
  std::vector<std::thread> threads_;
};

void ComputeFor(int64_t ns) {
  const int64_t end = MonotonicNanos() + ns;
  volatile int64_t work = 0;
  while (MonotonicNanos() < end) work = work + 1;
}

double OffloadShare(const TierTime& time, int64_t begin, int64_t end) {
  StepActivity activity;
  activity.whole = {begin, end};
  activity.tiers = time;
  return AccountOf(activity).shares().offload;
}

TEST(TierLogTest, WaitingForAnOperationIsOffloadAndComputingMeanwhileIsNot) {
  const auto log = std::make_shared<TierLog>();
  TimedTier tier(std::make_shared<SlowTier>(60), log);
  const std::vector<std::byte> bytes(16);

  log->Stamp();
  log->Take();
  int64_t begin = MonotonicNanos();
  Operation put = tier.StartPut("a", bytes, {});
  ComputeFor(50 * kMilli);
  log->Stamp();
  // On a busy machine this may take longer than the operation, but the thread
  // has not slept.
  EXPECT_LT(OffloadShare(log->Take(), begin, MonotonicNanos()), 0.5);
  ASSERT_THAT(put.Wait(), IsOk());

  log->Stamp();
  log->Take();
  begin = MonotonicNanos();
  ASSERT_THAT(tier.Put("a", bytes, {}), IsOk());
  log->Stamp();
  EXPECT_GT(OffloadShare(log->Take(), begin, MonotonicNanos()), 0.5);
}

TEST(TierLogTest, ATierOverAnotherOneIsThatTier) {
  const auto log = std::make_shared<TierLog>();
  TimedTier tier(std::make_shared<offload::HostTier>(
                     std::make_shared<offload::Accounting>("host", 100)),
                 log);
  std::vector<std::byte> bytes(10, std::byte{7});
  const BlockInfo info = {offload::Purpose::kOptimizer, DType::kU8};
  ASSERT_THAT(tier.Put("a", bytes, info), IsOk());
  std::vector<std::byte> read(10);
  ASSERT_THAT(tier.Get("a", read), IsOk());
  EXPECT_EQ(read, bytes);
  std::vector<std::byte> part(3);
  ASSERT_THAT(tier.GetRange("a", 7, part), IsOk());
  EXPECT_THAT(tier.GetRange("a", 8, part),
              StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(tier.name(), "host");
  EXPECT_THAT(tier.Keys(), ElementsAre("a"));
  EXPECT_EQ(tier.Stat("a")->info, info);
  EXPECT_EQ(tier.usage()[0].usage.current, 10);
  EXPECT_EQ(tier.Map("a")->bytes.size(), 10u);
  EXPECT_EQ(tier.MapNew("b", 20, info)->bytes.size(), 20u);
  EXPECT_THAT(tier.Prefetch("b"), IsOk());
  const std::vector<std::byte> large(80);
  EXPECT_THAT(tier.Put("c", large, info),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(tier.Drop("a"), IsOk());
  EXPECT_THAT(tier.Drop("a"), StatusIs(absl::StatusCode::kNotFound));
  const TierTime time = log->Take();
  EXPECT_THAT(time.calls, SizeIs(10));
  EXPECT_THAT(time.in_flight, SizeIs(6));
}

TEST(TierLogTest, OtherThreadsCallsAreNotTheRanks) {
  const auto log = std::make_shared<TierLog>();
  TimedTier tier(std::make_shared<SlowTier>(0), log);
  const std::vector<std::byte> bytes(16);
  std::thread([&] { EXPECT_THAT(tier.Put("a", bytes, {}), IsOk()); }).join();
  const TierTime time = log->Take();
  EXPECT_THAT(time.calls, SizeIs(0));
  EXPECT_THAT(time.in_flight, SizeIs(1));
}

}  // namespace
}  // namespace tessera::train
