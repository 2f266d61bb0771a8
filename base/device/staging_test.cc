#include "base/device/staging.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "base/device/emulated_device.h"
#include "base/device/host_device.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

std::vector<std::shared_ptr<Device>> Devices() {
  std::vector<std::shared_ptr<Device>> devices = {
      std::make_shared<HostDevice>()};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    devices.push_back(*EmulatedDevice::Create({.seed = seed}));
  }
  return devices;
}

TEST(StagingPoolTest, UploadsAndDownloadsBytes) {
  for (const std::shared_ptr<Device>& device : Devices()) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Queue> queue,
                                 device->CreateQueue("copy"));
    StagingPool staging(*queue);
    std::vector<Buffer> buffers;
    std::vector<Download> downloads;
    std::vector<uint8_t> values(1000);
    for (size_t size : {0u, 1u, 63u, 500u, 1000u, 64u}) {
      std::iota(values.begin(), values.end(), static_cast<uint8_t>(size));
      TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer,
                                   Buffer::Allocate(device->memory(), size));
      buffers.push_back(std::move(buffer));
      const std::span source = std::span(values).first(size);
      TESSERA_ASSERT_OK(
          staging.Upload(std::as_bytes(source), buffers.back().bytes()));
      // The source may change immediately.
      std::fill(values.begin(), values.end(), uint8_t{0});
      TESSERA_ASSERT_OK_AND_ASSIGN(
          Download download, staging.StartDownload(buffers.back().bytes()));
      downloads.push_back(std::move(download));
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::span<const std::byte> bytes,
                                   downloads[i].Wait());
      std::vector<uint8_t> expected(buffers[i].size());
      std::iota(expected.begin(), expected.end(),
                static_cast<uint8_t>(buffers[i].size()));
      ASSERT_EQ(bytes.size(), expected.size());
      for (size_t at = 0; at < bytes.size(); ++at) {
        ASSERT_EQ(std::to_integer<uint8_t>(bytes[at]), expected[at]);
      }
    }
  }
}

// Two uploads in turn, written by the caller.
TEST(StagingPoolTest, UploadsBytesWrittenByCaller) {
  for (const std::shared_ptr<Device>& device : Devices()) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Queue> queue,
                                 device->CreateQueue("copy"));
    StagingPool staging(*queue);
    TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer,
                                 Buffer::Allocate(device->memory(), 1000));
    Event previous;
    for (size_t at = 0; at < 1000; at += 100) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const StagedUpload upload,
                                   staging.Stage(100));
      ASSERT_EQ(upload.bytes().size(), 100u);
      for (std::byte& byte : upload.bytes()) {
        byte = static_cast<std::byte>(at / 100);
      }
      TESSERA_ASSERT_OK(staging.Send(upload, buffer.bytes().subspan(at, 100)));
      TESSERA_ASSERT_OK(previous.Wait());
      TESSERA_ASSERT_OK_AND_ASSIGN(previous, queue->Record());
    }
    EXPECT_LE(staging.blocks(), 2u);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Download download,
                                 staging.StartDownload(buffer.bytes()));
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::span<const std::byte> bytes,
                                 download.Wait());
    for (size_t at = 0; at < bytes.size(); ++at) {
      ASSERT_EQ(std::to_integer<size_t>(bytes[at]), at / 100);
    }
  }
}

TEST(StagingPoolTest, BlocksDoNotExceedCopiesInFlight) {
  for (const std::shared_ptr<Device>& device : Devices()) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Queue> queue,
                                 device->CreateQueue("copy"));
    StagingPool staging(*queue);
    TESSERA_ASSERT_OK_AND_ASSIGN(Buffer buffer,
                                 Buffer::Allocate(device->memory(), 4096));
    const std::vector<std::byte> values(4096);
    // Six copies a step; the device determines how many run at once.
    for (int step = 0; step < 20; ++step) {
      for (int i = 0; i < 5; ++i) {
        TESSERA_ASSERT_OK(staging.Upload(values, buffer.bytes()));
      }
      TESSERA_ASSERT_OK_AND_ASSIGN(const Download download,
                                   staging.StartDownload(buffer.bytes()));
      TESSERA_ASSERT_OK(download.Wait());
      EXPECT_LE(staging.blocks(), 6u);
    }
  }
}

}  // namespace
}  // namespace tessera
