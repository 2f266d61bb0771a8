#include "zero3/config/offload_config.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/codec.h"

namespace tessera::zero3 {
namespace {

using offload::kUnlimited;
using offload::PressureStrategy;
using offload::Purpose;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::TempDir;

TEST(OffloadConfigTest, EverythingHasTheDefaultsOfTorsh) {
  const OffloadConfig config = OffloadConfig::Everything();
  TESSERA_EXPECT_OK(config.Validate());
  EXPECT_TRUE(config.parameters && config.gradients && config.optimizer);
  EXPECT_EQ(config.host_budget, int64_t{32} * 1024 * 1024 * 1024);
  EXPECT_EQ(config.device_budget, int64_t{2} * 1024 * 1024 * 1024);
  EXPECT_EQ(config.host_memory, int64_t{65536} * 1024 * 1024);
  EXPECT_EQ(config.device_memory, int64_t{8192} * 1024 * 1024);
  EXPECT_EQ(config.prefetch, 16);
  EXPECT_TRUE(config.async_prefetch && config.overlap && config.pin_memory);
  EXPECT_EQ(config.codec, "none");
  EXPECT_EQ(config.strategy, PressureStrategy::kAggressive);
}

void ExpectInvalid(const std::function<void(OffloadConfig&)>& change,
                   const std::string& message) {
  OffloadConfig config = OffloadConfig::Everything();
  change(config);
  EXPECT_THAT(config.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

TEST(OffloadConfigTest, RejectsInvalidValues) {
  TESSERA_EXPECT_OK(OffloadConfig().Validate());
  ExpectInvalid([](auto& c) { c.host_budget = 0; }, "host_budget is 0; use 1");
  ExpectInvalid([](auto& c) { c.device_budget = 0; }, "device_budget is 0");
  ExpectInvalid([](auto& c) { c.prefetch = 0; }, "prefetch is 0; use 1");
  ExpectInvalid([](auto& c) { c.device_memory = 0; }, "device_memory is 0");
  ExpectInvalid([](auto& c) { c.host_memory = 0; }, "host_memory is 0");
  ExpectInvalid([](auto& c) { c.device_budget = (int64_t{8} << 30) + 1; },
                "device_budget is 8589934593B, more than device_memory, which "
                "is 8GiB");
  ExpectInvalid([](auto& c) { c.host_budget = int64_t{65} << 30; },
                "host_budget is 65GiB, more than host_memory, which is 64GiB");
  ExpectInvalid([](auto& c) { c.host_budget = kUnlimited; },
                "pin_memory locks the whole host_budget, which is unlimited");
  ExpectInvalid([](auto& c) { c.codec = "zip"; }, "zip");
  // All problems at once.
  OffloadConfig config;
  config.host_budget = config.prefetch = -1;
  EXPECT_THAT(config.Validate().message(), AllOf(HasSubstr("host_budget is -1"),
                                                 HasSubstr("prefetch is -1")));
}

TEST(OffloadConfigTest, EffectiveHostBudgetIsExact) {
  OffloadConfig config = {.host_budget = 1000, .codec = "fp16"};
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF32), IsOkAndHolds(2000));
  EXPECT_THAT(config.EffectiveHostBudget(DType::kBF16), IsOkAndHolds(1000));
  config.host_budget = 123'456'789;
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF32),
              IsOkAndHolds(246'913'578));
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF64),
              IsOkAndHolds(493'827'156));
  config.codec = "none";
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF32),
              IsOkAndHolds(123'456'789));
  config.codec = "fp16";
  config.host_budget = kUnlimited - 1;
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF32),
              IsOkAndHolds(kUnlimited));
  config.host_budget = kUnlimited;
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF32),
              IsOkAndHolds(kUnlimited));
  config = {.host_budget = 1000, .codec = "zip"};
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF32),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// What a tier holds of a block whose size is a multiple of every codec's block,
// as the budget, gives back the size of the block.
TEST(OffloadConfigTest, EffectiveHostBudgetEqualsEncodedSizes) {
  const std::vector<float> values(int64_t{3} << 20, 0.5f);
  const auto bytes = std::as_bytes(std::span(values));
  for (const char* codec : {"fp16", "bf16", "int8", "nf4", "nf4_double"}) {
    OffloadConfig config = {.codec = codec};
    TESSERA_ASSERT_OK_AND_ASSIGN(const OffloadTier made,
                                 MakeOffloadTier(config, DType::kBF16));
    const offload::BlockInfo info = {Purpose::kGradients, DType::kF32};
    TESSERA_ASSERT_OK(made.tier->Put("g", bytes, info));
    TESSERA_ASSERT_OK(made.tier->Put("empty", {}, info));
    config.host_budget =
        made.tier->Stat("g")->held_bytes - made.tier->Stat("empty")->held_bytes;
    EXPECT_THAT(config.EffectiveHostBudget(DType::kF32),
                IsOkAndHolds(static_cast<int64_t>(bytes.size())))
        << codec;
  }
}

TEST(OffloadConfigTest, LosslessBudgetIsCertainUnlessMeasured) {
  const OffloadConfig config = {.host_budget = 1'000'000, .codec = "lossless"};
  TESSERA_ASSERT_OK_AND_ASSIGN(const int64_t certain,
                               config.EffectiveHostBudget(DType::kBF16));
  EXPECT_LE(certain, 1'000'000);
  EXPECT_GT(certain, 990'000);
  EXPECT_THAT(config.EffectiveHostBudget(
                  DType::kBF16, {.original_bytes = 10, .held_bytes = 7}),
              IsOkAndHolds(1'428'571));
}

TEST(OffloadConfigTest, RoundsOnlyStateThatToleratesIt) {
  OffloadConfig config = {.codec = "int8"};
  EXPECT_EQ(config.CodecOf(Purpose::kGradients, DType::kF32), "int8");
  EXPECT_EQ(config.CodecOf(Purpose::kParameters, DType::kBF16), "int8");
  EXPECT_EQ(config.CodecOf(Purpose::kParameters, DType::kF32), "lossless");
  EXPECT_EQ(config.CodecOf(Purpose::kOptimizer, DType::kBF16), "lossless");
  config.codec = "none";
  EXPECT_EQ(config.CodecOf(Purpose::kOptimizer, DType::kBF16), "none");
}

TEST(OffloadConfigTest, JsonRestoresEveryField) {
  OffloadConfig config = OffloadConfig::Everything();
  config.device_memory = kUnlimited;
  config.directory = "/scratch/\"a\"";
  config.prefetch = 3;
  config.async_prefetch = config.overlap = config.gradients = false;
  config.codec = "nf4";
  config.strategy = PressureStrategy::kBalanced;
  EXPECT_THAT(OffloadConfig::Parse(config.ToJson()), IsOkAndHolds(config));
  EXPECT_THAT(OffloadConfig::Parse(OffloadConfig().ToJson()),
              IsOkAndHolds(OffloadConfig()));
  EXPECT_THAT(OffloadConfig::Parse("{\"optimizer\": true}"),
              IsOkAndHolds(OffloadConfig{.optimizer = true}));
}

TEST(OffloadConfigTest, RejectsInvalidJson) {
  const auto expect = [](std::string_view json, const std::string& message) {
    EXPECT_THAT(
        OffloadConfig::Parse(json),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << json;
  };
  expect("[]", "object");
  expect("{\"host_budgets\": 1}", "host_budgets");
  expect("{\"host_budget\": \"1\"}", "host_budget");
  expect("{\"host_budget\": 0}", "host_budget is 0; use 1 or more");
  expect("{\"overlap\": 1}", "overlap");
  expect("{\"strategy\": \"bold\"}", "strategy: offload strategy \"bold\"");
}

TEST(OffloadConfigTest, DamagedJsonNeverCrashes) {
  TextMutator mutator({OffloadConfig::Everything().ToJson(), "{}"},
                      {"null", "\"codec\":", "-1", "1e400", "[", "}"}, 5);
  for (int i = 0; i < 3000; ++i) {
    const auto config = OffloadConfig::Parse(mutator.Next());
    if (config.ok()) {
      EXPECT_THAT(OffloadConfig::Parse(config->ToJson()),
                  IsOkAndHolds(*config));
    }
  }
}

TEST(MakeOffloadTierTest, FullHostBudgetIsAnErrorWithoutDirectory) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const OffloadTier made,
      MakeOffloadTier({.host_budget = 1000}, DType::kF32));
  EXPECT_EQ(made.spill, nullptr);
  EXPECT_THAT(made.tier->Put("m", std::vector<std::byte>(1001), {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("1001 bytes"), HasSubstr("1000"))));
}

TEST(MakeOffloadTierTest, SpillsToTheDirectory) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const OffloadTier made,
      MakeOffloadTier({.host_budget = 1000, .directory = TempDir()},
                      DType::kF32));
  ASSERT_NE(made.spill, nullptr);
  TESSERA_ASSERT_OK(made.tier->Put("a", std::vector<std::byte>(900), {}));
  TESSERA_ASSERT_OK(made.tier->Put("b", std::vector<std::byte>(900), {}));
  ASSERT_EQ(made.tier->usage().size(), 2u);
  for (const offload::TierUsage& one : made.tier->usage()) {
    EXPECT_EQ(one.usage.current, 900) << one.tier;
  }
}

TEST(MakeOffloadTierTest, DirectoryWithoutHostBudgetTakesAll) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const OffloadTier made,
      MakeOffloadTier({.directory = TempDir()}, DType::kF32));
  EXPECT_EQ(made.tier->name(), "file");
  EXPECT_FALSE(MakeOffloadTier({.directory = "/proc/none"}, DType::kF32).ok());
}

TEST(MakeOffloadTierTest, PinsTheHostBudget) {
  std::vector<size_t> pinned;
  OffloadTierOptions options;
  options.pinning = {.pin =
                         [&](void*, size_t bytes) {
                           pinned.push_back(bytes);
                           return absl::OkStatus();
                         },
                     .unpin = [](void*, size_t) {}};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const OffloadTier made,
      MakeOffloadTier({.host_budget = 8192, .pin_memory = true}, DType::kF32,
                      options));
  EXPECT_EQ(pinned, std::vector<size_t>{8192});
  TESSERA_ASSERT_OK(made.tier->Put("a", std::vector<std::byte>(5000), {}));
  EXPECT_GE(made.arena->used_bytes(), 5000);
}

TEST(AddToTest, SetsTiersThatTheStageAllows) {
  OffloadConfig config = OffloadConfig::Everything();
  config.pin_memory = false;
  TESSERA_ASSERT_OK_AND_ASSIGN(const OffloadTier made,
                               MakeOffloadTier(config, DType::kF32));
  for (int stage = 0; stage <= 3; ++stage) {
    ShardedStateOptions options = {.stage = stage};
    AddTo(options, config, made.tier.get());
    EXPECT_EQ(options.parameter_tier != nullptr, stage == 3);
    EXPECT_EQ(options.gradient_tier != nullptr, stage >= 2);
    EXPECT_EQ(options.optimizer_tier, made.tier.get());
    EXPECT_EQ(options.device->usage().budget, config.device_budget);
    EXPECT_EQ(options.prefetch, 16);
  }
  ShardedStateOptions options;
  AddTo(options, {.gradients = true, .async_prefetch = false, .overlap = false},
        made.tier.get());
  EXPECT_EQ(options.gradient_tier, made.tier.get());
  EXPECT_EQ(options.parameter_tier, nullptr);
  EXPECT_EQ(options.optimizer_tier, nullptr);
  EXPECT_EQ(options.device, nullptr);
  EXPECT_EQ(options.prefetch, 0);
  EXPECT_FALSE(options.overlap);
}

}  // namespace
}  // namespace tessera::zero3
