#include "offload/pressure/pressure_controller.h"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/pressure/reading/budget_source.h"
#include "offload/tier/host_tier.h"

namespace tessera::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// `blocks` blocks of 10 bytes, "0", "1", ... in a budget of 1000.
struct Tiers {
  explicit Tiers(int blocks, int64_t far_budget = kUnlimited)
      : accounting(std::make_shared<Accounting>("near", 1000)),
        near(accounting),
        far(std::make_shared<Accounting>("far", far_budget)) {
    for (int i = 0; i < blocks; ++i) {
      const std::vector<std::byte> block(10, static_cast<std::byte>(i));
      EXPECT_THAT(near.Put(std::to_string(i), block,
                           {Purpose::kOptimizer, DType::kF16}),
                  IsOk());
    }
  }

  std::unique_ptr<PressureController> Control(PressureStrategy strategy) {
    return *PressureController::Create(
        {.near = &near,
         .far = &far,
         .source = std::make_shared<BudgetSource>(accounting),
         .strategy = strategy,
         .next_use = [](std::string_view key) {
           return static_cast<int64_t>(std::stoi(std::string(key)));
         }});
  }

  // Each block is in one tier, whole.
  void CheckAll(int blocks) {
    for (int i = 0; i < blocks; ++i) {
      const std::string key = std::to_string(i);
      EXPECT_NE(near.Contains(key), far.Contains(key)) << key;
      MemoryTier& tier = near.Contains(key) ? static_cast<MemoryTier&>(near)
                                            : static_cast<MemoryTier&>(far);
      std::vector<std::byte> block(10);
      EXPECT_THAT(tier.Get(key, block), IsOk());
      for (const std::byte b : block) EXPECT_EQ(b, static_cast<std::byte>(i));
      EXPECT_EQ(tier.Stat(key)->info,
                (BlockInfo{Purpose::kOptimizer, DType::kF16}));
    }
  }

  std::shared_ptr<Accounting> accounting;
  HostTier near;
  HostTier far;
};

TEST(PressureControllerTest, MovesWhatIsNeededLastFirst) {
  Tiers tiers(92);
  const auto controller = tiers.Control(PressureStrategy::kConservative);
  TESSERA_ASSERT_OK_AND_ASSIGN(const PressureReport report,
                               controller->Check());
  EXPECT_TRUE(report.acted);
  EXPECT_EQ(report.level, PressureLevel::kCritical);
  EXPECT_DOUBLE_EQ(report.pressure, 0.92);
  EXPECT_EQ(report.bytes_wanted, 184);  // a fifth
  EXPECT_EQ(report.bytes_moved, 190);
  ASSERT_THAT(report.moved, SizeIs(19));
  EXPECT_EQ(report.moved.front(), "91");
  EXPECT_EQ(report.moved.back(), "73");
  EXPECT_DOUBLE_EQ(report.after.pressure(), 0.73);
  TESSERA_EXPECT_OK(report.status);
  tiers.CheckAll(92);
}

TEST(PressureControllerTest, EachStrategyActsAtItsThreshold) {
  for (const auto strategy :
       {PressureStrategy::kConservative, PressureStrategy::kBalanced,
        PressureStrategy::kAggressive, PressureStrategy::kExtreme}) {
    const PressurePolicy policy(strategy);
    const int at = static_cast<int>(policy.threshold() * 100 + 0.5);
    Tiers below(at - 1), reached(at);
    TESSERA_ASSERT_OK_AND_ASSIGN(const PressureReport quiet,
                                 below.Control(strategy)->Check());
    EXPECT_FALSE(quiet.acted);
    EXPECT_THAT(quiet.moved, IsEmpty());
    EXPECT_EQ(below.accounting->usage().current, 10 * (at - 1));
    TESSERA_ASSERT_OK_AND_ASSIGN(const PressureReport report,
                                 reached.Control(strategy)->Check());
    EXPECT_TRUE(report.acted) << strategy;
    EXPECT_GE(static_cast<double>(report.bytes_moved),
              policy.aggressiveness() * 10 * at);
    reached.CheckAll(at);
  }
}

TEST(PressureControllerTest, GoesOnUntilBelowTheMarginAndThenRests) {
  Tiers tiers(92);
  const auto controller = tiers.Control(PressureStrategy::kConservative);
  TESSERA_ASSERT_OK(controller->Check());
  for (int i = 0; i < 5; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const PressureReport report,
                                 controller->Check());
    EXPECT_FALSE(report.acted);
    // The level waits before it falls.
    EXPECT_EQ(report.level, PressureLevel::kCritical);
  }
  // Within the margin it acts, since the level has not fallen.
  const std::vector<std::byte> block(140);
  TESSERA_ASSERT_OK(tiers.near.Put("1000", block, {}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const PressureReport report,
                               controller->Check());
  EXPECT_DOUBLE_EQ(report.pressure, 0.87);
  EXPECT_TRUE(report.acted);
}

TEST(PressureControllerTest, ABlockThatCannotMoveStaysAndOthersGo) {
  Tiers tiers(95, /*far_budget=*/35);
  const auto controller = tiers.Control(PressureStrategy::kConservative);
  TESSERA_ASSERT_OK_AND_ASSIGN(const PressureReport report,
                               controller->Check());
  EXPECT_EQ(report.bytes_moved, 30);
  EXPECT_THAT(report.moved, ElementsAre("94", "93", "92"));
  EXPECT_THAT(report.status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("cannot offload block \"91\"")));
  tiers.CheckAll(95);
}

TEST(PressureControllerTest, BlocksThatStayAreNotMoved) {
  Tiers tiers(40);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto controller,
      PressureController::Create(
          {.near = &tiers.near,
           .far = &tiers.far,
           .source = std::make_shared<BudgetSource>(tiers.accounting),
           .strategy = PressureStrategy::kExtreme,
           .next_use = [](std::string_view key) {
             return key == "7" ? kStays : int64_t{0};
           }}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const PressureReport report,
                               controller->Check());
  EXPECT_EQ(report.bytes_moved, 390);
  EXPECT_THAT(tiers.near.Keys(), ElementsAre("7"));
}

TEST(PressureControllerTest, OffloadsOnRequestTheLargestFirst) {
  Tiers tiers(3);
  TESSERA_ASSERT_OK(tiers.near.Put("large", std::vector<std::byte>(50), {}));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto controller,
      PressureController::Create(
          {.near = &tiers.near,
           .far = &tiers.far,
           .source = std::make_shared<BudgetSource>(tiers.accounting)}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const PressureReport report,
                               controller->Offload(55));
  EXPECT_THAT(report.moved, ElementsAre("large", "0"));
  EXPECT_THAT(controller->Offload(-1),
              StatusIs(absl::StatusCode::kInvalidArgument));
  TESSERA_ASSERT_OK_AND_ASSIGN(const PressureReport none,
                               controller->Offload(0));
  EXPECT_THAT(none.moved, IsEmpty());
}

TEST(PressureControllerTest, ChecksMayRunAtOnce) {
  Tiers tiers(99);
  const auto controller = tiers.Control(PressureStrategy::kBalanced);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) EXPECT_THAT(controller->Check(), IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(tiers.accounting->usage().current, 750);
  tiers.CheckAll(99);
}

// Says one thing, or fails.
class FixedSource final : public MemorySource {
 public:
  explicit FixedSource(absl::StatusOr<MemoryReading> reading)
      : reading_(std::move(reading)) {}
  absl::StatusOr<MemoryReading> Read() override { return reading_; }

 private:
  absl::StatusOr<MemoryReading> reading_;
};

TEST(PressureControllerTest, RefusesWhatCannotWork) {
  Tiers tiers(1);
  const auto source = std::make_shared<BudgetSource>(tiers.accounting);
  for (const PressureOptions& options : std::vector<PressureOptions>{
           {.near = nullptr, .far = &tiers.far, .source = source},
           {.near = &tiers.near, .far = &tiers.near, .source = source},
           {.near = &tiers.near, .far = &tiers.far, .source = nullptr},
           {.near = &tiers.near,
           .far = &tiers.far,
           .source = source,
           .gauge = {.margin = -1}}}) {
    EXPECT_THAT(PressureController::Create(options),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto controller,
      PressureController::Create({.near = &tiers.near,
                                  .far = &tiers.far,
                                  .source = std::make_shared<FixedSource>(
                                      absl::NotFoundError("no /proc"))}));
  EXPECT_THAT(controller->Check(),
              StatusIs(absl::StatusCode::kNotFound, "no /proc"));
  tiers.CheckAll(1);
}

TEST(PressureControllerTest, TellsWhatMovedWhenMemoryCannotBeReadAgain) {
  class Once final : public MemorySource {
   public:
    absl::StatusOr<MemoryReading> Read() override {
      if (++reads_ > 1) return absl::UnavailableError("gone");
      MemoryReading reading;
      reading.limits.push_back({"once", 95, 0, 100});
      return reading;
    }

   private:
    int reads_ = 0;
  };
  Tiers tiers(10);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto controller,
      PressureController::Create({.near = &tiers.near,
                                  .far = &tiers.far,
                                  .source = std::make_shared<Once>()}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const PressureReport report,
                               controller->Check());
  EXPECT_EQ(report.bytes_moved, 80);
  EXPECT_THAT(report.after.unread, ElementsAre("gone"));
  tiers.CheckAll(10);
}

TEST(CombinedSourceTest, TheTightestCounts) {
  MemoryReading a, b;
  a.limits.push_back({"a", 5, 0, 10});
  a.stall = {5, 0};
  a.resident = 7;
  b.limits.push_back({"b", 8, 0, 10});
  b.stall = {1, 2};
  b.oom_kills = 1;
  CombinedSource source(
      {std::make_shared<FixedSource>(a),
       std::make_shared<FixedSource>(absl::UnavailableError("no device")),
       std::make_shared<FixedSource>(b)});
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryReading all, source.Read());
  EXPECT_EQ(all.tightest()->source, "b");
  EXPECT_EQ(all.stall, (PressureStall{5, 2}));
  EXPECT_EQ(all.resident, 7);
  EXPECT_EQ(all.oom_kills, 1);
  EXPECT_THAT(all.unread, ElementsAre("no device"));
  EXPECT_THAT(CombinedSource({}).Read(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(CombinedSource({std::make_shared<FixedSource>(
                                 absl::UnavailableError("no device"))})
                  .Read(),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(DeviceSourceTest, ADeviceIsALimit) {
  absl::StatusOr<DeviceMemory> memory = DeviceMemory{.free = 3, .total = 10};
  DeviceSource source("cuda:0", [&memory] { return memory; });
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryReading reading, source.Read());
  EXPECT_EQ(reading.tightest()->source, "cuda:0");
  EXPECT_EQ(reading.tightest()->used, 7);
  EXPECT_DOUBLE_EQ(reading.pressure(), 0.7);
  memory = DeviceMemory{.free = 11, .total = 10};
  EXPECT_THAT(source.Read(), StatusIs(absl::StatusCode::kInternal,
                                      HasSubstr("11 bytes of 10")));
  memory = absl::UnavailableError("no driver");
  EXPECT_THAT(source.Read(),
              StatusIs(absl::StatusCode::kUnavailable, "cuda:0: no driver"));
}

TEST(BudgetSourceTest, AnUnlimitedBudgetIsNoLimit) {
  BudgetSource source(std::make_shared<Accounting>("host", kUnlimited));
  TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryReading reading, source.Read());
  EXPECT_THAT(reading.limits, IsEmpty());
}

}  // namespace
}  // namespace tessera::offload
