#include "zero3/state/loss_scaler.h"

#include <limits>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

using ::testing::HasSubstr;

TEST(LossScalerTest, HalvesOnOverflowAndDoublesAfterTheInterval) {
  LossScaler scaler(
      {.dynamic = true, .initial = 8, .least = 2, .growth_interval = 3});
  for (int i = 0; i < 2; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 4);
  for (int i = 0; i < 3; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(LossScalerTest, ToleratesOverflowsUpToItsHysteresisUntilItGrows) {
  LossScaler scaler(
      {.dynamic = true, .initial = 16, .growth_interval = 2, .hysteresis = 2});
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 4);
  for (int i = 0; i < 2; ++i) scaler.Update(false);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(LossScalerTest, StaysWithinItsLimits) {
  LossScaler scaler({.dynamic = true,
                     .initial = 4,
                     .least = 2,
                     .largest = 8,
                     .growth_interval = 1});
  for (int i = 0; i < 5; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 8);
  for (int i = 0; i < 5; ++i) scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 2);
}

TEST(LossScalerTest, AFixedScaleStays) {
  LossScaler scaler({.initial = 128});
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScalerTest, GoesOnWhereACheckpointWas) {
  LossScaler scaler({.dynamic = true, .initial = 4, .growth_interval = 3});
  scaler.Restore(16, 2);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 32);
  EXPECT_EQ(scaler.steps_since_change(), 0);
}

TEST(LossScalerTest, RefusesWhatCannotBe) {
  EXPECT_THAT(CheckLossScale({}), IsOk());
  EXPECT_THAT(CheckLossScale({.initial = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("must be positive, finite")));
  EXPECT_THAT(
      CheckLossScale({.initial = std::numeric_limits<double>::infinity()}),
      StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CheckLossScale({.initial = 4, .least = 8}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("least 8, initial 4")));
  EXPECT_THAT(CheckLossScale({.growth_interval = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("growth interval of 0")));
  EXPECT_THAT(CheckLossScale({.hysteresis = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("hysteresis of 0")));
}

}  // namespace
}  // namespace tessera::zero3
