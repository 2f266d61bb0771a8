#include "zero3/state/cuda_state_ops.h"

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/cuda/testing/emulation.h"
#include "base/device/emulated_device.h"
#include "base/device/host_device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/optimizer/adamw.h"
#include "zero3/state/int8_blocks.h"
#include "zero3/state/testing/state_ops_conformance.h"

namespace tessera::zero3 {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(CudaStateOpsTest, EmulatedKernelsHaveTheBitsOfTheHost) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto ops,
                               emulated::CudaStateOps(HostQueue()));
  EXPECT_TRUE(ops->computes());
  testing::ExpectTheBitsOfTheHost(HostQueue(), *ops);
}

// The device finds accesses that are not declared.
TEST(CudaStateOpsTest, EmulatedKernelsOnADeviceHaveTheBitsOfTheHost) {
  for (const uint64_t seed : {1, 2, 3}) {
    const auto device =
        *EmulatedDevice::Create({.memory_bytes = 8 << 20, .seed = seed});
    const auto queue = *device->CreateQueue("compute");
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto ops,
                                 emulated::CudaStateOps(*queue));
    testing::ExpectTheBitsOfTheHost(*queue, *ops);
  }
}

// Threads that run as far as they can, or last first, find missing barriers.
TEST(CudaStateOpsTest, EveryOrderOfThreadsHasTheBitsOfTheHost) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto ops,
                               emulated::CudaStateOps(HostQueue()));
  for (const tessera::emulated::EmulationOptions& options :
       {tessera::emulated::EmulationOptions{
            tessera::emulated::EmulationOrder::kReverse},
        tessera::emulated::EmulationOptions{
            tessera::emulated::EmulationOrder::kRandom, 1},
        tessera::emulated::EmulationOptions{
            tessera::emulated::EmulationOrder::kRandom, 2}}) {
    const tessera::emulated::ScopedEmulation scoped(options);
    testing::ExpectTheBitsOfTheHost(HostQueue(), *ops);
  }
}

TEST(CudaStateOpsTest, RefusesWhatTheHostRefuses) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto ops,
                               emulated::CudaStateOps(HostQueue()));
  std::vector<float> values(300), other(300);
  const auto bytes = std::as_writable_bytes(std::span(values));
  const auto others = std::as_writable_bytes(std::span(other));
  EXPECT_THAT(ops->Run(op::EncodeInt8{DType::kF32, bytes, others}),
              StatusIs(kInvalid, HasSubstr("expected 312")));
  EXPECT_THAT(ops->DecodeInt8(others, DType::kF32, bytes), StatusIs(kInvalid));
  EXPECT_THAT(ops->Run(op::Add{DType::kF8E4M3, bytes.data(), others.data(), 4}),
              StatusIs(kInvalid, HasSubstr("give f64, f32, bf16 or f16")));
  EXPECT_THAT(
      ops->Run(op::Measure{{bytes.data(), DType::kI32, 4}, others.first(16)}),
      StatusIs(kInvalid, HasSubstr("elements are i32")));
  auto adamw = *offload::AdamW::Create({});
  offload::ParameterRange range = {.parameter = {bytes.data(), DType::kF32, 4},
                                   .gradient = {others.data(), DType::kF32, 3}};
  EXPECT_THAT(ops->Step(*adamw, 1, {}, range),
              StatusIs(kInvalid, HasSubstr("has 3 elements")));
  EXPECT_THAT(ops->Step(*adamw, 0, {}, range),
              StatusIs(kInvalid, HasSubstr("the first one is step 1")));
  range.frozen = true;
  TESSERA_EXPECT_OK(ops->Step(*adamw, 1, {}, range));
  EXPECT_THAT(values, ::testing::Each(0.0f));
}

TEST(CudaStateOpsTest, SumsUpTo256Messages) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto ops,
                               emulated::CudaStateOps(HostQueue()));
  std::vector<float> ones(8, 1), sum(8);
  std::vector<std::byte> encoded(static_cast<size_t>(Int8Bytes(8)));
  TESSERA_ASSERT_OK(ops->Run(
      op::EncodeInt8{DType::kF32, std::as_bytes(std::span(ones)), encoded}));
  std::vector<std::span<const std::byte>> sources(256, encoded);
  const auto to = std::as_writable_bytes(std::span(sum));
  TESSERA_EXPECT_OK(ops->Run(op::SumInt8{sources, 1, DType::kF32, to}));
  EXPECT_THAT(sum, ::testing::Each(256.0f));
  sources.push_back(encoded);
  EXPECT_THAT(ops->Run(op::SumInt8{sources, 1, DType::kF32, to}),
              StatusIs(kInvalid, HasSubstr("sum of 257 int8 messages")));
}

TEST(CudaStateOpsTest, NativeKernelsNeedACudaQueue) {
  EXPECT_THAT(native::CudaStateOps(HostQueue()).status().code(),
              ::testing::AnyOf(kInvalid, absl::StatusCode::kUnimplemented));
}

}  // namespace
}  // namespace tessera::zero3
