// Errors of the tier, misuse and random steps: no data is lost, nothing hangs,
// and the budget is respected.
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/prefetch/prefetcher.h"
#include "offload/prefetch/testing/slow_tier.h"
#include "offload/tier/host_tier.h"

namespace tessera::offload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kBlock = 1000;

void PutBlock(MemoryTier& tier, const std::string& key, int value,
              size_t bytes = kBlock) {
  const std::vector<std::byte> block(bytes, static_cast<std::byte>(value));
  TESSERA_ASSERT_OK(tier.Put(key, block, {}));
}

int ValueIn(MemoryTier& tier, const std::string& key) {
  std::vector<std::byte> block(static_cast<size_t>(tier.Stat(key)->bytes));
  if (!tier.Get(key, block).ok()) return -1;
  for (const std::byte b : block) {
    if (b != block[0]) return -2;
  }
  return std::to_integer<int>(block[0]);
}

std::unique_ptr<Prefetcher> Make(MemoryTier& tier, size_t blocks) {
  return *Prefetcher::Create(tier,
                             {.budget = static_cast<int64_t>(blocks * kBlock)});
}

TEST(PrefetcherFaultTest, UseReturnsLoadErrorAndMayBeRetried) {
  SlowTier tier({});
  for (const char* key : {"a", "b", "c"}) PutBlock(tier, key, 7);
  const auto prefetcher = Make(tier, 3);
  tier.FailGet("b", absl::DataLossError("checksum of sector 9"));
  const std::vector<std::string> order = {"a", "b", "c"};
  TESSERA_ASSERT_OK(prefetcher->BeginStep(order));
  TESSERA_ASSERT_OK(prefetcher->Use("a"));
  TESSERA_ASSERT_OK(prefetcher->Done("a"));
  EXPECT_THAT(prefetcher->Use("b"),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("cannot load block \"b\""),
                             HasSubstr("sector 9"))));
  TESSERA_ASSERT_OK(prefetcher->Use("b"));
  TESSERA_ASSERT_OK(prefetcher->Done("b"));
  TESSERA_ASSERT_OK(prefetcher->Use("c"));
  TESSERA_ASSERT_OK(prefetcher->Done("c"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const StepReport report, prefetcher->EndStep());
  EXPECT_EQ(report.uses, 3);
  EXPECT_EQ(report.deviations, 0);
}

TEST(PrefetcherFaultTest, KeepsBlockIfStoreFails) {
  SlowTier tier({});
  for (const char* key : {"a", "b"}) PutBlock(tier, key, 1);
  const auto prefetcher = Make(tier, 1);
  TESSERA_ASSERT_OK(prefetcher->BeginStep());
  TESSERA_ASSERT_OK_AND_ASSIGN(auto block, prefetcher->Use("a"));
  std::memset(block.data(), 2, block.size());
  TESSERA_ASSERT_OK(prefetcher->Done("a", /*dirty=*/true));
  tier.FailPut("a", absl::ResourceExhaustedError("disk full at 4096"));
  EXPECT_THAT(prefetcher->Use("b"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("no room for block \"b\""),
                             HasSubstr("cannot store block \"a\""),
                             HasSubstr("disk full at 4096"))));
  EXPECT_EQ(ValueIn(tier, "a"), 1);
  tier.FailPut("a", absl::ResourceExhaustedError("disk full again"));
  EXPECT_THAT(prefetcher->Flush(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("disk full again")));
  // The disk has space again: the same Use works and nothing was lost.
  TESSERA_ASSERT_OK_AND_ASSIGN(block, prefetcher->Use("b"));
  EXPECT_EQ(ValueIn(tier, "a"), 2);
  TESSERA_ASSERT_OK(prefetcher->Done("b"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const StepReport report, prefetcher->EndStep());
  TESSERA_EXPECT_OK(report.store_status);
}

TEST(PrefetcherFaultTest, EvictsAnotherBlockIfStoreFails) {
  SlowTier tier({});
  for (const char* key : {"a", "b", "c"}) PutBlock(tier, key, 1);
  const auto prefetcher = Make(tier, 2);
  TESSERA_ASSERT_OK(prefetcher->BeginStep());
  for (const char* key : {"a", "b"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto block, prefetcher->Use(key));
    std::memset(block.data(), 2, block.size());
    TESSERA_ASSERT_OK(prefetcher->Done(key, /*dirty=*/true));
  }
  for (const char* key : {"a", "b"}) {
    tier.FailPut(key, absl::UnavailableError("path is down"));
  }
  EXPECT_THAT(prefetcher->Use("c"), StatusIs(absl::StatusCode::kUnavailable));
  tier.FailPut("a", absl::UnavailableError("path is down"));
  TESSERA_ASSERT_OK(prefetcher->Use("c"));
  TESSERA_ASSERT_OK(prefetcher->Done("c"));
  TESSERA_ASSERT_OK(prefetcher->EndStep());
  TESSERA_ASSERT_OK(prefetcher->Flush());
  EXPECT_EQ(ValueIn(tier, "a"), 2);
  EXPECT_EQ(ValueIn(tier, "b"), 2);
}

TEST(PrefetcherFaultTest, NamesBlocksThatDoNotFit) {
  SlowTier tier({});
  PutBlock(tier, "large", 1, 5 * kBlock);
  for (const char* key : {"a", "b", "c"}) PutBlock(tier, key, 1);
  const auto prefetcher = Make(tier, 2);
  const std::vector<std::string> order = {"a", "large"};
  EXPECT_THAT(prefetcher->BeginStep(order),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("block \"large\"")));
  TESSERA_ASSERT_OK(prefetcher->BeginStep());
  EXPECT_THAT(prefetcher->Use("large"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("\"large\" of 5000 bytes"),
                             HasSubstr("near memory of 2000"))));
  TESSERA_ASSERT_OK(prefetcher->Use("a"));
  TESSERA_ASSERT_OK(prefetcher->Use("b"));
  EXPECT_THAT(prefetcher->Use("c"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("no room for block \"c\""),
                             HasSubstr("blocks in use"))));
  TESSERA_ASSERT_OK(prefetcher->Done("a"));
  TESSERA_ASSERT_OK(prefetcher->Use("c"));
}

TEST(PrefetcherFaultTest, RejectsMisuse) {
  SlowTier tier({});
  PutBlock(tier, "a", 1);
  const auto prefetcher = Make(tier, 2);
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(prefetcher->EndStep(),
              StatusIs(kPrecondition, HasSubstr("no step")));
  EXPECT_THAT(prefetcher->Done("a"),
              StatusIs(kPrecondition, HasSubstr("not in use")));
  const std::vector<std::string> missing = {"a", "nothing"};
  EXPECT_THAT(prefetcher->BeginStep(missing),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"nothing\"")));
  TESSERA_ASSERT_OK(prefetcher->BeginStep());
  EXPECT_THAT(prefetcher->BeginStep(),
              StatusIs(kPrecondition, HasSubstr("in progress")));
  EXPECT_THAT(prefetcher->Use("nothing"),
              StatusIs(absl::StatusCode::kNotFound));
  TESSERA_ASSERT_OK(prefetcher->Use("a"));
  EXPECT_THAT(prefetcher->EndStep(),
              StatusIs(kPrecondition, HasSubstr("the first is \"a\"")));
  EXPECT_THAT(prefetcher->Invalidate("a"), StatusIs(kPrecondition));
  TESSERA_ASSERT_OK(prefetcher->Done("a", /*dirty=*/true));
  EXPECT_THAT(prefetcher->Done("a"), StatusIs(kPrecondition));
  TESSERA_ASSERT_OK(prefetcher->Use("a"));
  EXPECT_THAT(prefetcher->Flush(),
              StatusIs(kPrecondition, HasSubstr("dirty and in use")));
  TESSERA_ASSERT_OK(prefetcher->Done("a"));
  TESSERA_ASSERT_OK(prefetcher->EndStep());
}

class Device final : public MemoryResource {
 public:
  MemoryKind kind() const override { return MemoryKind::kDevice; }
  absl::StatusOr<void*> Allocate(size_t, size_t) override {
    return absl::UnimplementedError("never asked");
  }
  void Deallocate(void*, size_t, size_t) override {}
};

TEST(PrefetcherFaultTest, OptionsAreChecked) {
  SlowTier tier({});
  PrefetchOptions good{.budget = 10};
  TESSERA_EXPECT_OK(Prefetcher::Create(tier, good));
  for (const auto& change : std::vector<void (*)(PrefetchOptions&)>{
           [](PrefetchOptions& o) { o.budget = 0; },
           [](PrefetchOptions& o) { o.resource = nullptr; },
           [](PrefetchOptions& o) { o.resource = std::make_shared<Device>(); },
           [](PrefetchOptions& o) { o.look_ahead = 0; },
           [](PrefetchOptions& o) { o.most_loads = 0; },
           [](PrefetchOptions& o) { o.most_stores = -1; },
           [](PrefetchOptions& o) { o.threads = 0; },
           [](PrefetchOptions& o) { o.load_bytes_per_second = -1; }}) {
    PrefetchOptions options = good;
    change(options);
    EXPECT_THAT(Prefetcher::Create(tier, options),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("prefetch options")));
  }
}

TEST(PrefetcherFaultTest, TheBudgetCountsInAnAccounting) {
  SlowTier tier({});
  const auto accounting = std::make_shared<Accounting>("host", 100);
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto prefetcher,
        Prefetcher::Create(tier, {.budget = 80, .accounting = accounting}));
    EXPECT_EQ(accounting->usage().of(Purpose::kBuffers).current, 80);
    EXPECT_THAT(
        Prefetcher::Create(tier, {.budget = 80, .accounting = accounting}),
        StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_EQ(accounting->usage().current, 0);
}

TEST(PrefetcherFaultTest, GrowsForBlocksInUseAndCountsGrowth) {
  SlowTier tier({});
  for (const char* key : {"a", "b", "c", "d"}) PutBlock(tier, key, 1);
  const auto accounting = std::make_shared<Accounting>("host", 3 * kBlock);
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto prefetcher,
        Prefetcher::Create(
            tier, {.budget = 1500, .grows = true, .accounting = accounting}));
    // Prefetched, but not at the cost of more memory.
    prefetcher->Announce("a");
    prefetcher->Announce("b");
    TESSERA_ASSERT_OK(prefetcher->Use("a"));
    EXPECT_EQ(prefetcher->budget(), 1500);
    TESSERA_ASSERT_OK(prefetcher->Use("b"));
    EXPECT_EQ(prefetcher->budget(), 2000);
    TESSERA_ASSERT_OK(prefetcher->Use("c", Prefetcher::Access::kOverwrite));
    EXPECT_EQ(accounting->usage().of(Purpose::kBuffers).current, 3000);
    EXPECT_THAT(prefetcher->Use("d"),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("host"), HasSubstr("\"d\""))));
    TESSERA_ASSERT_OK(prefetcher->Done("a"));
    TESSERA_ASSERT_OK(prefetcher->Use("d"));
    EXPECT_EQ(prefetcher->budget(), 3000);
    for (const char* key : {"b", "c", "d"}) {
      TESSERA_ASSERT_OK(prefetcher->Done(key));
    }
  }
  EXPECT_EQ(accounting->usage().current, 0);
}

TEST(PrefetcherFaultTest, DoesNotLoadBlocksToBeOverwritten) {
  SlowTier tier({});
  PutBlock(tier, "a", 1);
  const auto prefetcher = Make(tier, 1);
  tier.ForgetStarts();
  constexpr auto kOverwrite = Prefetcher::Access::kOverwrite;
  // Nothing was written: the tier's bytes are unchanged.
  TESSERA_ASSERT_OK(prefetcher->Use("a", kOverwrite));
  TESSERA_ASSERT_OK(prefetcher->Done("a"));
  EXPECT_TRUE(tier.starts().empty());
  TESSERA_ASSERT_OK_AND_ASSIGN(auto block, prefetcher->Use("a"));
  EXPECT_EQ(block[0], std::byte{1});
  TESSERA_ASSERT_OK(prefetcher->Done("a"));
  tier.ForgetStarts();
  TESSERA_ASSERT_OK(prefetcher->Invalidate("a"));
  TESSERA_ASSERT_OK_AND_ASSIGN(block, prefetcher->Use("a", kOverwrite));
  std::memset(block.data(), 7, block.size());
  TESSERA_ASSERT_OK(prefetcher->Done("a", /*dirty=*/true));
  TESSERA_ASSERT_OK(prefetcher->Flush());
  EXPECT_EQ(tier.starts(), std::vector<std::string>{"put a"});
  EXPECT_EQ(ValueIn(tier, "a"), 7);
  EXPECT_THAT(prefetcher->Use("nothing", kOverwrite),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(PrefetcherFaultTest, PutAwayStoresBlockAndReloadsIt) {
  SlowTier tier({});
  PutBlock(tier, "a", 1);
  const auto prefetcher = Make(tier, 2);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto block, prefetcher->Use("a"));
  EXPECT_THAT(prefetcher->PutAway("a"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("call Done before PutAway")));
  std::memset(block.data(), 5, block.size());
  TESSERA_ASSERT_OK(prefetcher->Done("a", /*dirty=*/true));
  tier.ForgetStarts();
  tier.FailPut("a", absl::UnavailableError("away"));
  EXPECT_THAT(prefetcher->PutAway("a"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("\"a\"")));
  EXPECT_EQ(ValueIn(tier, "a"), 1);
  TESSERA_ASSERT_OK(prefetcher->PutAway("a"));
  EXPECT_EQ(ValueIn(tier, "a"), 5);
  tier.ForgetStarts();
  TESSERA_ASSERT_OK_AND_ASSIGN(block, prefetcher->Use("a"));
  EXPECT_EQ(tier.starts(), std::vector<std::string>{"get a"});
  EXPECT_EQ(block[0], std::byte{5});
  TESSERA_ASSERT_OK(prefetcher->Done("a"));
  TESSERA_ASSERT_OK(prefetcher->PutAway("a"));
  TESSERA_ASSERT_OK(prefetcher->PutAway("never seen"));
}

TEST(PrefetcherFaultTest, DestructionWaitsAndStores) {
  SlowTier tier({.latency_ns = 5'000'000});
  for (const char* key : {"a", "b", "c", "d"}) PutBlock(tier, key, 1);
  {
    const auto prefetcher = Make(tier, 4);
    const std::vector<std::string> order = {"a", "b", "c", "d"};
    TESSERA_ASSERT_OK(prefetcher->BeginStep(order));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto block, prefetcher->Use("a"));
    std::memset(block.data(), 9, block.size());
    TESSERA_ASSERT_OK(prefetcher->Done("a", /*dirty=*/true));
  }
  EXPECT_EQ(ValueIn(tier, "a"), 9);
  EXPECT_EQ(ValueIn(tier, "d"), 1);
}

TEST(PrefetcherFaultTest, InvalidateReloadsBlockFromTier) {
  SlowTier tier({});
  PutBlock(tier, "a", 1);
  const auto prefetcher = Make(tier, 4);
  for (int value = 1; value < 4; ++value) {
    PutBlock(tier, "a", value, kBlock * static_cast<size_t>(value));
    TESSERA_ASSERT_OK(prefetcher->Invalidate("a"));
    TESSERA_ASSERT_OK(prefetcher->BeginStep());
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto block, prefetcher->Use("a"));
    EXPECT_EQ(std::to_integer<int>(block[0]), value);
    EXPECT_EQ(block.size(), kBlock * static_cast<size_t>(value));
    TESSERA_ASSERT_OK(prefetcher->Done("a"));
    TESSERA_ASSERT_OK(prefetcher->EndStep());
  }
  TESSERA_EXPECT_OK(prefetcher->Invalidate("never seen"));
}

// Host memory that records its peak.
class Meter final : public MemoryResource {
 public:
  MemoryKind kind() const override { return MemoryKind::kHost; }
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override {
    const int64_t now = out_ += static_cast<int64_t>(bytes);
    int64_t most = most_;
    while (now > most && !most_.compare_exchange_weak(most, now)) {
    }
    return HostMemory()->Allocate(bytes, alignment);
  }
  void Deallocate(void* data, size_t bytes, size_t alignment) override {
    out_ -= static_cast<int64_t>(bytes);
    HostMemory()->Deallocate(data, bytes, alignment);
  }
  int64_t most() const { return most_; }
  int64_t out() const { return out_; }

 private:
  std::atomic<int64_t> out_ = 0;
  std::atomic<int64_t> most_ = 0;
};

// Steps that mostly repeat one order, with blocks held across others, writes,
// deviations and failing transfers; the reference is a map.
class RandomSteps {
 public:
  RandomSteps(MemoryTier& tier, SlowTier* faults, uint64_t seed)
      : tier_(tier), faults_(faults), random_(seed) {}

  void Run(int steps) {
    int64_t largest = 0;
    for (int i = 0; i < 12; ++i) {
      const auto bytes = static_cast<size_t>(Below(5) * 500);
      largest = std::max(largest, static_cast<int64_t>(bytes));
      keys_.push_back("block " + std::to_string(i));
      values_[keys_.back()] = i;
      PutBlock(tier_, keys_.back(), i, bytes);
    }
    const int64_t budget = std::max<int64_t>(3 * largest + Below(4000), 1);
    const auto meter = std::make_shared<Meter>();
    prefetcher_ =
        *Prefetcher::Create(tier_, {.budget = budget,
                                    .resource = meter,
                                    .threads = static_cast<int>(1 + Below(3))});
    for (int i = 0; i < 30; ++i) order_.push_back(AnyKey());
    for (int i = 0; i < steps; ++i) ASSERT_NO_FATAL_FAILURE(Step());
    while (!prefetcher_->Flush().ok()) {
    }
    if (faults_ != nullptr) faults_->ForgetFaults();
    EXPECT_LE(meter->most(), budget);
    for (const auto& [key, value] : values_) {
      if (tier_.Stat(key)->bytes > 0) {
        EXPECT_EQ(ValueIn(tier_, key), value);
      }
    }
    prefetcher_.reset();
    EXPECT_EQ(meter->out(), 0);
  }

 private:
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }
  const std::string& AnyKey() { return keys_[static_cast<size_t>(Below(12))]; }

  void Step() {
    if (Below(4) == 0) order_[static_cast<size_t>(Below(30))] = AnyKey();
    int64_t uses = 0;
    // Between steps, with and without announcements.
    for (int64_t i = Below(6); i > 0; --i) {
      const std::string& key = AnyKey();
      prefetcher_->Announce(AnyKey());
      if (Below(2) == 0) prefetcher_->Announce(key);
      ASSERT_NO_FATAL_FAILURE(Use(key, uses));
      TESSERA_ASSERT_OK(prefetcher_->Done(key));
    }
    uses = 0;
    TESSERA_ASSERT_OK(prefetcher_->BeginStep());
    std::string held;
    for (const std::string& planned : order_) {
      const std::string key = Below(40) == 0 ? AnyKey() : planned;
      if (Below(60) == 0) continue;
      if (faults_ != nullptr && Below(20) == 0) {
        faults_->FailGet(AnyKey(), absl::DataLossError("get"));
        faults_->FailPut(AnyKey(), absl::UnavailableError("put"));
      }
      ASSERT_NO_FATAL_FAILURE(Use(key, uses));
      if (!held.empty()) {
        TESSERA_ASSERT_OK(prefetcher_->Done(held));
        held.clear();
      }
      if (Below(3) == 0) {
        held = key;
      } else {
        TESSERA_ASSERT_OK(prefetcher_->Done(key));
      }
    }
    if (!held.empty()) {
      TESSERA_ASSERT_OK(prefetcher_->Done(held));
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const StepReport report,
                                 prefetcher_->EndStep());
    ASSERT_EQ(report.uses, uses);
    ASSERT_EQ(report.hits + report.late + report.missing, uses);
  }

  void Use(const std::string& key, int64_t& uses) {
    const auto access = Below(5) == 0 ? Prefetcher::Access::kOverwrite
                                      : Prefetcher::Access::kUpdate;
    absl::StatusOr<std::span<std::byte>> block = prefetcher_->Use(key, access);
    for (int i = 0; i < 200 && !block.ok() && faults_ != nullptr; ++i) {
      block = prefetcher_->Use(key, access);
    }
    TESSERA_ASSERT_OK(block);
    ++uses;
    if (access == Prefetcher::Access::kUpdate) {
      for (const std::byte b : *block) {
        ASSERT_EQ(std::to_integer<int>(b), values_[key]) << key;
      }
      if (Below(3) != 0) return;
    }
    values_[key] = static_cast<int>(Below(256));
    std::fill(block->begin(), block->end(),
              static_cast<std::byte>(values_[key]));
    // Dirty immediately, through a nested use.
    TESSERA_ASSERT_OK(prefetcher_->Use(key));
    TESSERA_ASSERT_OK(prefetcher_->Done(key, /*dirty=*/true));
    ++uses;
  }

  MemoryTier& tier_;
  SlowTier* const faults_;
  std::mt19937_64 random_;
  std::vector<std::string> keys_;
  std::map<std::string, int> values_;
  std::vector<std::string> order_;
  std::unique_ptr<Prefetcher> prefetcher_;
};

TEST(PrefetcherFaultTest, RandomStepsOverAHostTier) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    HostTier tier(std::make_shared<Accounting>("host", kUnlimited));
    ASSERT_NO_FATAL_FAILURE(RandomSteps(tier, nullptr, seed).Run(30));
  }
}

TEST(PrefetcherFaultTest, RandomStepsOverFailingTier) {
  for (uint64_t seed = 100; seed < 108; ++seed) {
    SlowTier tier({.latency_ns = 20'000, .lanes = 4});
    ASSERT_NO_FATAL_FAILURE(RandomSteps(tier, &tier, seed).Run(20));
  }
}

}  // namespace
}  // namespace tessera::offload
