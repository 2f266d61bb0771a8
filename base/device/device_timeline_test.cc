#include "base/device/device_timeline.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/device/emulated_device.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using Kind = DeviceTimeline::Kind;

// 1 byte takes a second.
DeviceTiming Slow() {
  return {.upload_bytes_per_second = 1,
          .download_bytes_per_second = 1,
          .memory_bytes_per_second = 1,
          .launch_seconds = 0};
}

TEST(DeviceTimelineTest, QueuesOverlapUnlessTheyWait) {
  DeviceTimeline timeline(Slow());
  timeline.Add(1, {}, Kind::kWork, "a", 10);
  timeline.Add(2, {}, Kind::kUpload, "copy", 4);
  EXPECT_EQ(timeline.time().elapsed, 10);
  timeline.Add(2, std::vector<uint64_t>{0, 1, 1}, Kind::kUpload, "copy", 5);
  EXPECT_EQ(timeline.time().elapsed, 15);
  timeline.Add(1, std::vector<uint64_t>{0, 1, 2}, Kind::kWork, "b", 1);
  EXPECT_EQ(timeline.time().elapsed, 16);
  EXPECT_EQ(timeline.time().work, 11);
  EXPECT_EQ(timeline.time().uploads, 9);
  EXPECT_EQ(timeline.time().bound(), 11);
}

TEST(DeviceTimelineTest, CopiesOfOneDirectionShareTheLink) {
  DeviceTimeline timeline(Slow());
  timeline.Add(1, {}, Kind::kUpload, "copy", 3);
  timeline.Add(2, {}, Kind::kUpload, "copy", 3);
  timeline.Add(3, {}, Kind::kDownload, "copy", 5);
  EXPECT_EQ(timeline.time().elapsed, 6);
}

TEST(DeviceTimelineTest, WorkAfterHostWaitStartsLater) {
  DeviceTimeline timeline(Slow());
  timeline.Add(1, {}, Kind::kWork, "a", 7);
  timeline.HostWaits(std::vector<uint64_t>{0, 1});
  timeline.Add(2, {}, Kind::kWork, "b", 2);
  EXPECT_EQ(timeline.time().elapsed, 9);
}

TEST(DeviceTimelineTest, FunctionTimesMatchModel) {
  DeviceTiming timing = Slow();
  timing.launch_seconds = 0.5;
  timing.work_seconds = [](std::string_view name, size_t) {
    return name == "gemm" ? 8.0 : 0.0;
  };
  DeviceTimeline timeline(timing);
  timeline.Add(1, {}, Kind::kWork, "gemm", 1);
  timeline.Add(1, {}, Kind::kWork, "add", 1);
  EXPECT_EQ(timeline.time().elapsed, 8.5);
}

// Uploads to two buffers in turn, each read by a function.
TEST(DeviceTimelineTest, EmulatedDeviceReportsModeledTime) {
  for (const bool overlaps : {false, true}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(std::shared_ptr<EmulatedDevice> device,
                                 EmulatedDevice::Create({.timing = Slow()}));
    TESSERA_ASSERT_OK_AND_ASSIGN(auto compute, device->CreateQueue("compute"));
    TESSERA_ASSERT_OK_AND_ASSIGN(auto copies, device->CreateQueue("upload"));
    TESSERA_ASSERT_OK_AND_ASSIGN(Buffer blocks,
                                 Buffer::Allocate(device->memory(), 200));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        Buffer near, Buffer::Allocate(device->staging_memory(), 100));
    Queue& up = overlaps ? *copies : *compute;
    Event used[2];
    for (int i = 0; i < 4; ++i) {
      const auto block =
          blocks.bytes().subspan(static_cast<size_t>(i % 2) * 100, 100);
      TESSERA_ASSERT_OK(up.Wait(used[i % 2]));
      TESSERA_ASSERT_OK(up.Copy(near.bytes(), block));
      TESSERA_ASSERT_OK_AND_ASSIGN(const Event ready, up.Record());
      TESSERA_ASSERT_OK(compute->Wait(ready));
      TESSERA_ASSERT_OK(compute->Launch(
          {.name = "use",
           .accesses = {ReadsFrom(block)},
           .run = [](const DeviceAddresses&) { return Event(); }}));
      TESSERA_ASSERT_OK_AND_ASSIGN(used[i % 2], compute->Record());
    }
    TESSERA_ASSERT_OK(device->Synchronize());
    EXPECT_EQ(device->simulated_time().elapsed, overlaps ? 500 : 800);
    EXPECT_EQ(device->simulated_time().bound(), 400);
  }
}

}  // namespace
}  // namespace tessera
