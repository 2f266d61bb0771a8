#include "zero3/state/options_from_config.h"

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "zero3/estimate/estimate_memory.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

using ::testing::HasSubstr;

offload::Purpose PurposeOf(Purpose purpose) {
  switch (purpose) {
    case Purpose::kParameters:
    case Purpose::kCopies:
      return offload::Purpose::kParameters;
    case Purpose::kGradients:
      return offload::Purpose::kGradients;
    default:
      return offload::Purpose::kOptimizer;
  }
}

// What the runtime counts is what was estimated, to the byte.
class EstimateTest : public ::testing::TestWithParam<
                         std::tuple<int64_t, int64_t, LayoutKind, DType>> {};

TEST_P(EstimateTest, ModelStateIsWhatTheEstimateSays) {
  const auto [stage, ranks, layout, dtype] = GetParam();
  for (const bool offloads : {false, true}) {
    ZeroConfig config;
    config.stage = stage;
    config.layout = layout;
    config.parameter_persistence_threshold = 20;
    config.offload_parameters = config.offload_gradients =
        config.offload_optimizer = offloads;
    config.loss_scale = 1;
    const auto host =
        std::make_shared<offload::Accounting>("host", offload::kUnlimited);
    offload::HostTier tier(host);
    const auto options = OptionsFrom(config, dtype, offloads ? &tier : nullptr);
    ASSERT_THAT(options.status(), IsOk());
    testing::ToyOptions toy = {.dtype = dtype, .ranks = ranks, .steps = 2};
    toy.state = *options;
    const auto memory =
        MemoryModel::Create(testing::ToyModel(dtype), config, {.ranks = ranks});
    ASSERT_THAT(memory.status(), IsOk());
    const auto results = testing::Train(toy);
    std::map<offload::Purpose, int64_t> all_on_host;
    for (int64_t r = 0; r < ranks; ++r) {
      const auto& result = results[static_cast<size_t>(r)];
      ASSERT_THAT(result.status(), IsOk());
      std::map<offload::Purpose, int64_t> on_device;
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<StateBlock> blocks,
                                   memory->Blocks(topology::Rank(r)));
      for (const StateBlock& block : blocks) {
        (block.tier == Tier::kDevice ? on_device
                                     : all_on_host)[PurposeOf(block.purpose)] +=
            block.bytes;
      }
      for (const offload::Purpose purpose :
           {offload::Purpose::kParameters, offload::Purpose::kGradients,
            offload::Purpose::kOptimizer}) {
        EXPECT_EQ(result->usage.of(purpose).peak, on_device[purpose])
            << "rank " << r << " " << offload::PurposeName(purpose);
      }
    }
    for (const offload::Purpose purpose :
         {offload::Purpose::kParameters, offload::Purpose::kGradients,
          offload::Purpose::kOptimizer}) {
      EXPECT_EQ(host->usage().of(purpose).peak, all_on_host[purpose])
          << offload::PurposeName(purpose);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EstimateTest,
    ::testing::Combine(::testing::Values<int64_t>(0, 1, 2, 3),
                       ::testing::Values<int64_t>(1, 2, 4, 8),
                       ::testing::Values(LayoutKind::kChunks,
                                         LayoutKind::kRoundRobin,
                                         LayoutKind::kBalanced),
                       ::testing::Values(DType::kBF16, DType::kF32)));

TEST(OptionsFromTest, TakesEveryOption) {
  ZeroConfig config;
  config.offload_parameters = config.offload_gradients =
      config.offload_optimizer = false;
  config.stage = 2;
  config.gradient_clipping = 0.5;
  config.allow_unused_parameters = true;
  config.reduce_bucket_size = ByteSize(1234);
  config.initial_scale_power = 10;
  config.loss_scale_window = 77;
  const auto options = OptionsFrom(config, DType::kBF16, nullptr);
  ASSERT_THAT(options.status(), IsOk());
  EXPECT_EQ(options->stage, 2);
  EXPECT_EQ(options->clip_norm, 0.5);
  EXPECT_TRUE(options->allow_unused);
  EXPECT_EQ(options->bucket_bytes, 1234);
  EXPECT_EQ(options->gradient_dtype, DType::kBF16);
  EXPECT_TRUE(options->loss_scale.dynamic);
  EXPECT_EQ(options->loss_scale.initial, 1024);
  EXPECT_EQ(options->loss_scale.growth_interval, 77);
  EXPECT_EQ(options->loss_scale.hysteresis, 2);
  config.gradient_type = GradientType::kFp32;
  EXPECT_EQ(OptionsFrom(config, DType::kBF16, nullptr)->gradient_dtype,
            DType::kF32);
}

TEST(OptionsFromTest, RefusesOffloadingToNowhereAndWhatIsNotValid) {
  EXPECT_THAT(OptionsFrom(ZeroConfig(), DType::kF32, nullptr).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("there is no tier for it")));
  ZeroConfig config;
  config.stage = 9;
  EXPECT_THAT(OptionsFrom(config, DType::kF32, nullptr).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stage")));
}

}  // namespace
}  // namespace tessera::zero3
