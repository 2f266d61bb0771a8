#include "zero3/state/options_from_config.h"

#include <memory>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"

namespace tessera::zero3 {
namespace {

using ::testing::HasSubstr;

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
  config.overlap = false;
  config.prefetch_buffer = 5;
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
  EXPECT_FALSE(options->overlap);
  EXPECT_EQ(options->prefetch_windows, 1);
  EXPECT_EQ(options->prefetch_shards, 5);
  EXPECT_EQ(options->value_budget_bytes,
            config.EffectiveDeviceParameterBudget().bytes());
  EXPECT_EQ(options->far_tier, nullptr);
  config.async_prefetch = false;
  EXPECT_EQ(OptionsFrom(config, DType::kBF16, nullptr)->prefetch_shards, 0);
  config.gradient_type = GradientType::kFp32;
  EXPECT_EQ(OptionsFrom(config, DType::kBF16, nullptr)->gradient_dtype,
            DType::kF32);
}

TEST(OptionsFromTest, FilesTakeWhatTheHostHasNoRoomFor) {
  offload::HostTier host(std::make_shared<offload::Accounting>("host", 0));
  offload::HostTier files(std::make_shared<offload::Accounting>("files", 0));
  ZeroConfig config;
  config.cpu_budget = ByteSize(1000);
  const auto options = OptionsFrom(config, DType::kF32, &host, &files);
  ASSERT_THAT(options.status(), IsOk());
  EXPECT_EQ(options->parameter_tier, &host);
  EXPECT_EQ(options->far_tier, &files);
  EXPECT_EQ(options->tier_budget, 600);
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
