#include "zero3/state/state_device.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/status_matchers.h"
#include "base/tensor/counting_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::span<std::byte> BytesOf(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values));
}

TEST(StateOpsTest, TheHostDoesWhatItSays) {
  const std::shared_ptr<StateOps> ops = HostStateOps();
  EXPECT_TRUE(ops->has_values());
  std::vector<float> a = {1, 2, 3}, b = {10, 20, 30, 40};
  ops->Add(DType::kF32, BytesOf(a).data(), BytesOf(b).data(), 3);
  EXPECT_THAT(b, ElementsAre(11, 22, 33, 40));
  ops->Copy(BytesOf(a), BytesOf(b));
  EXPECT_THAT(b, ElementsAre(1, 2, 3, 40));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const offload::GradientStatistics statistics,
      ops->Measure(offload::ConstTypedSpan(BytesOf(a).data(), DType::kF32, 3)));
  EXPECT_DOUBLE_EQ(statistics.sum_of_squares, 14);
  ops->Zero(BytesOf(a));
  EXPECT_THAT(a, Each(0.0f));
  ops->Zero({});
  ops->Copy({}, {});
}

// A step through the device equals a step of AdamW.
TEST(StateOpsTest, TheHostStepsAsTheOptimizerDoes) {
  const auto step = [](bool through_ops) {
    std::vector<float> values = {1, -2}, gradient = {0.5f, 0.25f};
    std::vector<float> first(2, 0), second(2, 0);
    auto adamw = *offload::AdamW::Create({.learning_rate = 0.1});
    const auto moment = [](std::vector<float>& of) {
      return *offload::MomentSpan::Over(offload::MomentFormat::F32(), 2,
                                        BytesOf(of));
    };
    offload::ParameterRange range;
    range.whole = 2;
    range.parameter =
        offload::TypedSpan(BytesOf(values).data(), DType::kF32, 2);
    range.gradient =
        offload::ConstTypedSpan(BytesOf(gradient).data(), DType::kF32, 2);
    range.first = moment(first);
    range.second = moment(second);
    const absl::Status status = through_ops
                                    ? HostStateOps()->Step(*adamw, 1, {}, range)
                                    : adamw->Step(1, {}, std::span(&range, 1));
    EXPECT_THAT(status, IsOk());
    return values;
  };
  EXPECT_EQ(step(true), step(false));
  EXPECT_NE(step(true)[0], 1.0f);
}

// The test crashes if the memory is accessed.
TEST(StateOpsTest, ADryRunTouchesNothing) {
  const auto memory =
      std::make_shared<CountingMemory>(CountingMemory::Access::kTrapped);
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer from, Buffer::Allocate(memory, 64));
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer to, Buffer::Allocate(memory, 64));
  const std::shared_ptr<StateOps> ops = DryStateOps();
  EXPECT_FALSE(ops->has_values());
  ops->Zero(to.bytes());
  ops->Copy(from.bytes(), to.bytes());
  ops->Add(DType::kF32, from.data(), to.data(), 16);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const offload::GradientStatistics statistics,
      ops->Measure(offload::ConstTypedSpan(from.data(), DType::kF32, 16)));
  EXPECT_TRUE(statistics.IsFinite());
  auto adamw = *offload::AdamW::Create({});
  offload::ParameterRange range;
  range.whole = 16;
  range.parameter = offload::TypedSpan(to.data(), DType::kF32, 16);
  range.gradient = offload::ConstTypedSpan(from.data(), DType::kF32, 16);
  EXPECT_THAT(ops->Step(*adamw, 1, {}, range), IsOk());
}

TEST(StateDeviceTest, IsOfTheHostUnlessSaidOtherwise) {
  const StateDevice device(
      std::make_shared<offload::Accounting>("device", 100));
  EXPECT_EQ(device.memory, HostMemory());
  EXPECT_EQ(device.ops, HostStateOps());
}

}  // namespace
}  // namespace tessera::zero3
