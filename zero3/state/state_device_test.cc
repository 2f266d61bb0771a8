#include "zero3/state/state_device.h"

#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "base/device/emulated_device.h"
#include "base/device/staging.h"
#include "base/status_matchers.h"
#include "base/tensor/counting_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/sgd.h"
#include "zero3/state/int8_blocks.h"

namespace tessera::zero3 {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::span<std::byte> BytesOf(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values));
}

TEST(StateOpsTest, TheHostDoesWhatItSays) {
  const std::shared_ptr<StateOps> ops = HostStateOps();
  EXPECT_TRUE(ops->computes());
  std::vector<float> a = {1, 2, 3}, b = {10, 20, 30, 40};
  TESSERA_EXPECT_OK(
      ops->Run(op::Add{DType::kF32, BytesOf(a).data(), BytesOf(b).data(), 3}));
  EXPECT_THAT(b, ElementsAre(11, 22, 33, 40));
  TESSERA_EXPECT_OK(ops->Copy(BytesOf(a), BytesOf(b)));
  EXPECT_THAT(b, ElementsAre(1, 2, 3, 40));
  offload::GradientStatistics statistics;
  TESSERA_ASSERT_OK(ops->Run(
      op::Measure{offload::ConstTypedSpan(BytesOf(a).data(), DType::kF32, 3),
                  std::as_writable_bytes(std::span(&statistics, 1))}));
  EXPECT_DOUBLE_EQ(statistics.sum_of_squares, 14);
  TESSERA_EXPECT_OK(ops->Zero(BytesOf(a)));
  EXPECT_THAT(a, Each(0.0f));
  TESSERA_EXPECT_OK(ops->Zero({}));
  TESSERA_EXPECT_OK(ops->Copy({}, {}));
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

// Values in the memory of a queue's device.
class Array {
 public:
  Array(Queue& queue, std::vector<float> values)
      : memory_(*Buffer::Allocate(queue.device().memory(),
                                  values.size() * sizeof(float))),
        staging_(queue) {
    TESSERA_EXPECT_OK(staging_.Upload(BytesOf(values), memory_.bytes()));
  }
  std::span<std::byte> bytes() { return memory_.bytes(); }
  offload::TypedSpan elements() {
    return {memory_.data(), DType::kF32,
            static_cast<int64_t>(memory_.size() / sizeof(float))};
  }
  std::vector<std::byte> Read() {
    const auto download = staging_.StartDownload(memory_.bytes());
    EXPECT_THAT(download.status(), IsOk());
    const auto bytes = download->Wait();
    EXPECT_THAT(bytes.status(), IsOk());
    return bytes.ok() ? std::vector<std::byte>(bytes->begin(), bytes->end())
                      : std::vector<std::byte>();
  }

 private:
  Buffer memory_;
  StagingPool staging_;
};

std::vector<float> Numbers(size_t count, float first) {
  std::vector<float> numbers;
  for (size_t i = 0; i < count; ++i) {
    numbers.push_back(first + std::sin(static_cast<float>(i)));
  }
  return numbers;
}

// The bytes of all memory after every operation.
std::vector<std::vector<std::byte>> AfterAllOperations(Queue& queue) {
  constexpr size_t kCount = 300;
  const std::shared_ptr<StateOps> ops = HostStateOps(queue);
  Array a(queue, Numbers(kCount, 1)), b(queue, Numbers(kCount, 2)),
      c(queue, Numbers(kCount, 3)), zeros(queue, Numbers(kCount, 4)),
      decoded(queue, Numbers(kCount, 5)), sum(queue, Numbers(kCount, 6));
  const auto codes = static_cast<size_t>(Int8Bytes(kCount)) / sizeof(float);
  Array first(queue, Numbers(codes, 0)), second(queue, Numbers(codes, 0)),
      both(queue, Numbers(codes, 0));
  Array statistics(queue, Numbers(4, 0));
  const offload::MomentFormat format = offload::MomentFormat::Blockwise8(64);
  const auto moment_floats =
      (static_cast<size_t>(*offload::MomentBytes(format, kCount))) /
      sizeof(float);
  Array m(queue, std::vector<float>(moment_floats)),
      v(queue, std::vector<float>(moment_floats));
  TESSERA_EXPECT_OK(ops->Zero(zeros.bytes()));
  TESSERA_EXPECT_OK(ops->Run(
      op::Add{DType::kF32, a.bytes().data(), b.bytes().data(), kCount}));
  TESSERA_EXPECT_OK(ops->Copy(a.bytes().first(40), c.bytes()));
  TESSERA_EXPECT_OK(
      ops->Run(op::EncodeInt8{DType::kF32, a.bytes(), first.bytes()}));
  TESSERA_EXPECT_OK(
      ops->Run(op::EncodeInt8{DType::kF32, b.bytes(), second.bytes()}));
  TESSERA_EXPECT_OK(
      ops->DecodeInt8(first.bytes(), DType::kF32, decoded.bytes()));
  const std::vector<std::span<const std::byte>> sources = {first.bytes(),
                                                           second.bytes()};
  TESSERA_EXPECT_OK(
      ops->Run(op::SumInt8{sources, 2, DType::kF32, sum.bytes()}));
  TESSERA_EXPECT_OK(
      ops->Run(op::SumInt8Encoded{sources, kCount, both.bytes()}));
  TESSERA_EXPECT_OK(ops->Run(op::Measure{b.elements(), statistics.bytes()}));
  offload::ParameterRange range = {
      .whole = kCount, .parameter = c.elements(), .gradient = b.elements()};
  range.first = *offload::MomentSpan::Over(format, kCount, m.bytes());
  range.second = *offload::MomentSpan::Over(format, kCount, v.bytes());
  auto adamw = *offload::AdamW::Create({.learning_rate = 0.1});
  TESSERA_EXPECT_OK(ops->Step(*adamw, 1, {.clip_factor = 0.5}, range));
  // The step has been enqueued with the rate of before.
  TESSERA_EXPECT_OK(adamw->SetLearningRate(100));
  auto sgd = *offload::Sgd::Create({.learning_rate = 0.1, .momentum = 0.9});
  TESSERA_EXPECT_OK(ops->Step(*sgd, 2, {}, range));
  std::vector<std::vector<std::byte>> all;
  for (Array* const array : {&a, &b, &c, &zeros, &decoded, &sum, &first,
                             &second, &both, &statistics, &m, &v}) {
    all.push_back(array->Read());
  }
  TESSERA_EXPECT_OK(queue.Synchronize());
  return all;
}

TEST(StateOpsTest, ADeviceHasTheBitsOfTheHost) {
  const auto expected = AfterAllOperations(HostQueue());
  for (const uint64_t seed : {1, 2, 3}) {
    const auto device =
        *EmulatedDevice::Create({.memory_bytes = 1 << 20, .seed = seed});
    const auto queue = *device->CreateQueue("compute");
    EXPECT_EQ(AfterAllOperations(*queue), expected);
  }
}

// The test crashes if the memory is accessed.
TEST(StateOpsTest, ADryRunTouchesNothing) {
  const auto memory =
      std::make_shared<CountingMemory>(CountingMemory::Access::kTrapped);
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer from, Buffer::Allocate(memory, 64));
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer to, Buffer::Allocate(memory, 64));
  const std::shared_ptr<StateOps> ops = DryStateOps();
  EXPECT_FALSE(ops->computes());
  TESSERA_EXPECT_OK(ops->Zero(to.bytes()));
  TESSERA_EXPECT_OK(ops->Copy(from.bytes(), to.bytes()));
  TESSERA_EXPECT_OK(ops->Run(op::Add{DType::kF32, from.data(), to.data(), 16}));
  TESSERA_EXPECT_OK(ops->Run(
      op::Measure{offload::ConstTypedSpan(from.data(), DType::kF32, 4),
                  to.bytes().first(sizeof(offload::GradientStatistics))}));
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
