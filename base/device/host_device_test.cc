#include "base/device/host_device.h"

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/device/testing/device_conformance.h"
#include "base/status_matchers.h"
#include "base/tensor/counting_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, DeviceConformanceTest,
                         ::testing::Values(DeviceFactory([] {
                           return std::shared_ptr<Device>(
                               std::make_shared<HostDevice>());
                         })));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CaptureConformanceTest);

TEST(HostDeviceTest, CaptureIsUnimplemented) {
  EXPECT_THAT(Capture(HostQueue(), [] { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kUnimplemented,
                       ::testing::HasSubstr("device cpu of queue host")));
}

TEST(HostDeviceTest, RunsWorkImmediately) {
  std::vector<std::byte> bytes(3);
  TESSERA_ASSERT_OK(HostQueue().Fill(std::byte(7), bytes));
  EXPECT_EQ(bytes[2], std::byte(7));
  EXPECT_TRUE(HostQueue().is_immediate());
  bool ran = false;
  TESSERA_ASSERT_OK(HostQueue().Launch(
      {.name = "function", .run = [&](const DeviceAddresses& at) {
         EXPECT_EQ(at(&ran), &ran);
         ran = true;
         return Event();
       }}));
  EXPECT_TRUE(ran);
}

TEST(HostDeviceTest, ReturnsTheErrorOfAFunction) {
  EXPECT_THAT(HostQueue().Launch({.name = "function",
                                  .run =
                                      [](const DeviceAddresses&) {
                                        return absl::DataLossError("lost");
                                      }}),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(CountingDeviceTest, TouchesNoMemory) {
  using Access = CountingMemory::Access;
  const auto memory = std::make_shared<CountingMemory>(Access::kTrapped);
  const auto staging = std::make_shared<CountingMemory>(Access::kTrapped);
  CountingDevice device(memory, staging);
  const auto queue = device.CreateQueue("queue");
  TESSERA_ASSERT_OK(queue);
  auto a = Buffer::Allocate(device.memory(), 100);
  auto b = Buffer::Allocate(device.staging_memory(), 100);
  TESSERA_ASSERT_OK(a);
  TESSERA_ASSERT_OK(b);
  TESSERA_EXPECT_OK((*queue)->Copy(a->bytes(), b->bytes()));
  TESSERA_EXPECT_OK((*queue)->Fill(std::byte(0), a->bytes()));
  TESSERA_EXPECT_OK((*queue)->Launch(
      {.name = "function",
       .run = [](const DeviceAddresses&) -> absl::StatusOr<Event> {
         return absl::InternalError("called");
       }}));
  EXPECT_EQ(memory->live_bytes(), 100);
  EXPECT_EQ(staging->live_bytes(), 100);
}

}  // namespace
}  // namespace tessera
