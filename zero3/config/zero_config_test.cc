#include "zero3/config/zero_config.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/config/zero_config_builder.h"

namespace tessera::zero3 {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(ZeroConfigTest, DefaultsAreTheKnownOnesAndValid) {
  const ZeroConfig config;
  TESSERA_EXPECT_OK(config.Validate());
  EXPECT_EQ(config.stage, 3);
  EXPECT_TRUE(config.offload_parameters && config.offload_gradients &&
              config.offload_optimizer);
  EXPECT_EQ(config.cpu_budget, ByteSize(32 * kGiB));
  EXPECT_EQ(config.device_parameter_budget, ByteSize(2 * kGiB));
  EXPECT_EQ(config.prefetch_buffer, 16);
  EXPECT_TRUE(config.async_prefetch && config.overlap && config.pin_memory);
  EXPECT_EQ(config.compression, Compression::kNone);
  EXPECT_EQ(config.strategy, Strategy::kAggressive);
}

TEST(ZeroConfigTest, EffectiveBudgetsAreExact) {
  ZeroConfig config;
  EXPECT_EQ(config.EffectiveHostBudget(), ByteSize(20'615'843'020));
  EXPECT_EQ(config.EffectiveDeviceParameterBudget(), ByteSize(1'288'490'188));
  config.strategy = Strategy::kConservative;
  EXPECT_EQ(config.EffectiveDeviceParameterBudget(), ByteSize(1'932'735'283));
}

TEST(ZeroConfigTest, LayoutOptionsFollowTheStage) {
  ZeroConfig config = {.layout = LayoutKind::kBalanced, .alignment = 256};
  EXPECT_EQ(config.MakeLayoutOptions(8),
            (LayoutOptions{.kind = LayoutKind::kBalanced,
                           .ranks = 8,
                           .alignment = 256,
                           .small_below = 100'000}));
  config.stage = 2;
  EXPECT_EQ(config.MakeLayoutOptions(8).small_below, 0);
  config.stage = 0;
  EXPECT_EQ(config.MakeLayoutOptions(8).ranks, 1);
}

// One field is set to a wrong value: it is told, and the replacement is valid.
template <typename T>
void ExpectProblem(T ZeroConfig::*field, T wrong, std::string_view name) {
  ZeroConfig config;
  config.*field = wrong;
  const auto problems = config.Problems();
  ASSERT_EQ(problems.size(), 1u) << name;
  EXPECT_EQ(problems[0].field, name);
  EXPECT_TRUE(problems[0].replacement.has_value());
  EXPECT_THAT(config.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("1 problem with the ZeRO configuration"),
                             HasSubstr(std::string(name) + " is "),
                             HasSubstr("fix: set " + std::string(name)))));
}

TEST(ZeroConfigTest, EveryWrongFieldIsTold) {
  using C = ZeroConfig;
  ExpectProblem<int64_t>(&C::stage, 4, "stage");
  ExpectProblem<int64_t>(&C::stage, -1, "stage");
  ExpectProblem(&C::layout, static_cast<LayoutKind>(9), "layout");
  ExpectProblem<int64_t>(&C::alignment, 0, "alignment");
  ExpectProblem(&C::cpu_budget, ByteSize(0), "cpu_budget");
  ExpectProblem(&C::device_parameter_budget, ByteSize(-1),
                "device_parameter_budget");
  ExpectProblem(&C::swap_directory, std::string("a\0b", 3), "swap_directory");
  ExpectProblem(&C::swap_directory, std::string(5000, 'x'), "swap_directory");
  ExpectProblem(&C::compression, static_cast<Compression>(9), "compression");
  ExpectProblem(&C::strategy, static_cast<Strategy>(9), "strategy");
  ExpectProblem<int64_t>(&C::prefetch_buffer, 0, "prefetch_buffer");
  ExpectProblem(&C::reduce_bucket_size, ByteSize(7), "reduce_bucket_size");
  ExpectProblem<int64_t>(&C::parameter_persistence_threshold, -1,
                         "parameter_persistence_threshold");
  ExpectProblem<int64_t>(&C::max_live_parameters, -1, "max_live_parameters");
  ExpectProblem<int64_t>(&C::max_reuse_distance, -1, "max_reuse_distance");
  ExpectProblem<int64_t>(&C::gradient_accumulation_steps, 0,
                         "gradient_accumulation_steps");
  ExpectProblem(&C::gradient_type, static_cast<GradientType>(9),
                "gradient_type");
  ExpectProblem(&C::gradient_clipping, -0.5, "gradient_clipping");
  ExpectProblem(&C::gradient_clipping, std::nan(""), "gradient_clipping");
  ExpectProblem(&C::loss_scale, std::numeric_limits<double>::infinity(),
                "loss_scale");
  ExpectProblem<int64_t>(&C::initial_scale_power, 127, "initial_scale_power");
  ExpectProblem<int64_t>(&C::loss_scale_window, 0, "loss_scale_window");
  ExpectProblem<int64_t>(&C::hysteresis, 0, "hysteresis");
  ExpectProblem(&C::min_loss_scale, 0.0, "min_loss_scale");
  ExpectProblem(&C::min_loss_scale, 65537.0, "min_loss_scale");
  ExpectProblem(&C::min_loss_scale, std::nan(""), "min_loss_scale");
}

TEST(ZeroConfigTest, NoHostBudgetIsNeededWithAFileOrWithoutOffload) {
  ZeroConfig config;
  config.cpu_budget = ByteSize(0);
  config.swap_directory = "/swap";
  TESSERA_EXPECT_OK(config.Validate());
  TESSERA_EXPECT_OK(
      ZeroConfigBuilder().CpuBudget(ByteSize(0)).OffloadAll(false).Build());
}

TEST(ZeroConfigBuilderTest, SetsWhatItIsToldAndKeepsTheRest) {
  ZeroConfig wanted;
  wanted.stage = 2;
  wanted.strategy = Strategy::kBalanced;
  wanted.swap_directory = "/swap";
  wanted.gradient_clipping = 1.5;
  EXPECT_THAT(ZeroConfigBuilder()
                  .Stage(2)
                  .Strategy(Strategy::kBalanced)
                  .SwapDirectory("/swap")
                  .GradientClipping(1.5)
                  .Build(),
              IsOkAndHolds(wanted));
  wanted.overlap = false;
  EXPECT_THAT(ZeroConfigBuilder(wanted).Build(), IsOkAndHolds(wanted));
}

TEST(ZeroConfigBuilderTest, TellsAllProblemsAtOnce) {
  EXPECT_THAT(
      ZeroConfigBuilder().Stage(7).Alignment(0).PrefetchBuffer(-1).Build(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("3 problems"), HasSubstr("1. stage is 7"),
                     HasSubstr("2. alignment is 0; allowed: 1 to 1048576"),
                     HasSubstr("3. prefetch_buffer is -1"))));
}

}  // namespace
}  // namespace tessera::zero3
