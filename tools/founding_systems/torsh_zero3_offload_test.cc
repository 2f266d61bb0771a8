// The expectations of torsh's zero_3_cpu_offload/config.rs.
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "offload/codec/codec.h"
#include "offload/pressure/pressure_policy.h"
#include "topology/rank.h"
#include "zero3/config/offload_config.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/statistics.h"

namespace tessera::zero3 {
namespace {

using offload::PressurePolicy;
using offload::PressureStrategy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using topology::Rank;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

TEST(TorshOffloadConfigTest, Defaults) {
  const OffloadConfig config = OffloadConfig::Everything();
  EXPECT_TRUE(config.parameters);
  EXPECT_TRUE(config.gradients);
  EXPECT_TRUE(config.optimizer);
  EXPECT_EQ(config.host_budget, 32 * kGiB);
  EXPECT_EQ(config.device_budget, 2 * kGiB);
  EXPECT_EQ(config.device_memory, 8192 * kMiB);
  EXPECT_EQ(config.host_memory, 65536 * kMiB);
  EXPECT_EQ(config.prefetch, 16);
  EXPECT_TRUE(config.async_prefetch);
  EXPECT_TRUE(config.overlap);
  EXPECT_TRUE(config.pin_memory);
  EXPECT_EQ(config.codec, "none");
  EXPECT_EQ(config.strategy, PressureStrategy::kAggressive);
  TESSERA_EXPECT_OK(config.Validate());
}

TEST(TorshOffloadConfigTest, SevenErrors) {
  const auto expect_error = [](auto change) {
    OffloadConfig config = OffloadConfig::Everything();
    change(config);
    EXPECT_THAT(config.Validate(),
                StatusIs(absl::StatusCode::kInvalidArgument));
  };
  expect_error([](OffloadConfig& c) { c.host_budget = 0; });
  expect_error([](OffloadConfig& c) { c.device_budget = 0; });
  expect_error([](OffloadConfig& c) { c.prefetch = 0; });
  expect_error([](OffloadConfig& c) { c.device_memory = 0; });
  expect_error([](OffloadConfig& c) { c.host_memory = 0; });
  expect_error([](OffloadConfig& c) { c.device_budget = 9 * kGiB; });
  expect_error([](OffloadConfig& c) { c.host_budget = 65 * kGiB; });
}

TEST(TorshOffloadConfigTest, EffectiveHostBudget) {
  OffloadConfig config = {.host_budget = 1000};
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF32), IsOkAndHolds(1000));
  config.codec = "fp16";
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF32), IsOkAndHolds(2000));
  config.host_budget = 123456789;
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF32), IsOkAndHolds(246913578));
  config.codec = "bf16";
  EXPECT_THAT(config.EffectiveHostBudget(DType::kF32), IsOkAndHolds(246913578));
}

TEST(TorshCompressionTest, MethodsAndLosses) {
  for (const char* name :
       {"none", "fp16", "bf16", "int8", "quantization", "lossless"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto codec, offload::CreateCodec(name));
    const bool lossless =
        name == std::string("none") || name == std::string("lossless");
    EXPECT_EQ(codec->IsLossless(DType::kF32), lossless) << name;
  }
}

TEST(TorshMemoryStrategyTest, ThresholdsAndAggressiveness) {
  struct Want {
    PressureStrategy strategy;
    double threshold, aggressiveness;
  };
  for (const Want& want : {Want{PressureStrategy::kConservative, 0.9, 0.2},
                           Want{PressureStrategy::kBalanced, 0.75, 0.5},
                           Want{PressureStrategy::kAggressive, 0.6, 0.8},
                           Want{PressureStrategy::kExtreme, 0.4, 1.0}}) {
    const PressurePolicy& policy = PressurePolicy::Of(want.strategy);
    EXPECT_EQ(policy.threshold(), want.threshold);
    EXPECT_EQ(policy.aggressiveness, want.aggressiveness);
    EXPECT_FALSE(policy.description.empty());
  }
}

ModelParameters TenParameters() {
  ModelParameters::Builder builder;
  for (int i = 0; i < 10; ++i) {
    builder.Add({.name = "p" + std::to_string(i), .shape = {2}});
  }
  return *builder.Build();
}

TEST(TorshRankMappingTest, OwnersAreRoundRobin) {
  const ModelParameters model = TenParameters();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const StateLayout layout,
      StateLayout::Create(model,
                          {.kind = LayoutKind::kRoundRobin, .ranks = 4}));
  for (int64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(layout.LocalOf(ParameterId(i), 0)->rank, Rank(i % 4));
  }
  std::vector<int64_t> owned;
  for (const Extent& extent : layout.ExtentsOf(Rank(1))) {
    if (extent.size() > 0) owned.push_back(extent.parameter.value());
  }
  EXPECT_THAT(owned, ElementsAre(1, 5, 9));
  // The second partition of rank 1 is number 5, and back.
  EXPECT_THAT(layout.LocalOf(ParameterId(5), 0),
              IsOkAndHolds(LocalIndex{Rank(1), 2}));
  EXPECT_EQ(layout.GlobalOf(Rank(1), 2)->parameter, ParameterId(5));
}

TEST(TorshRankMappingTest, CommunicationGroupsAreHolders) {
  const ModelParameters model = TenParameters();
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const StateLayout layout,
      StateLayout::Create(model,
                          {.kind = LayoutKind::kRoundRobin, .ranks = 4}));
  const std::vector<ParameterId> parameters = {ParameterId(5), ParameterId(0),
                                               ParameterId(4)};
  EXPECT_THAT(*layout.HoldersOf(parameters), ElementsAre(Rank(0), Rank(1)));
}

TEST(TorshModelParametersTest, CountsShapesAndMemory) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ModelParameters model,
      ModelParameters::Builder()
          .Add({.name = "weight", .shape = {10, 20}})
          .Add({.name = "bias", .shape = {20}})
          .Add({.name = "half", .shape = {3}, .dtype = DType::kF16})
          .Build());
  EXPECT_EQ(model.count(), 3);
  EXPECT_EQ(model.elements(), 223);
  EXPECT_EQ(model.bytes(), 4 * 220 + 2 * 3);
  EXPECT_EQ(model[*model.Find("weight")].spec.shape,
            (std::vector<int64_t>{10, 20}));
  EXPECT_THAT(model.Find("missing"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(TorshModelParametersTest, Statistics) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ModelParameters model,
      ModelParameters::Builder()
          .Add({.name = "a", .shape = {100}})
          .Add({.name = "b", .shape = {7}})
          .Add({.name = "c", .shape = {10}})
          .Add({.name = "d", .shape = {1}, .trainable = false})
          .Build());
  const ParameterStatistics s = StatisticsOf(model.all());
  EXPECT_EQ(s.count, 4);
  EXPECT_EQ(s.elements, 118);
  EXPECT_EQ(s.trainable_elements, 117);
  EXPECT_EQ(s.mean, 29);
  EXPECT_EQ(s.mean_remainder, 2);  // 29.5 exactly.
  EXPECT_EQ(s.median, 8);
  EXPECT_TRUE(s.median_has_half);
  EXPECT_EQ(s.least, 1);
  EXPECT_EQ(s.most, 100);
  EXPECT_EQ(StatisticsOf({}), ParameterStatistics());
}

}  // namespace
}  // namespace tessera::zero3
