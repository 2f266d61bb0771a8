#include <cstddef>
#include <memory>
#include <random>
#include <vector>

#include "base/device/emulated_device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {
namespace {

std::shared_ptr<offload::Accounting> Limited(int64_t bytes) {
  return std::make_shared<offload::Accounting>("device", bytes);
}

TEST(BufferPoolTest, ABlockIsUsedAgain) {
  BufferPool pool(Limited(1 << 20));
  AccountedMemory first = *pool.Take("a", 4096);
  std::byte* const place = first.bytes().data();
  pool.Give(std::move(first));
  EXPECT_EQ(pool.Take("b", 4096)->bytes().data(), place);
}

TEST(BufferPoolTest, HoldsNoMoreThanWasInUseAtOnce) {
  std::mt19937_64 random(11);
  const auto device = Limited(1 << 20);
  BufferPool pool(device);
  std::vector<AccountedMemory> used;
  int64_t in_use = 0, most = 0;
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0 && !used.empty()) {
      std::swap(used[random() % used.size()], used.back());
      in_use -= static_cast<int64_t>(used.back().bytes().size());
      pool.Give(std::move(used.back()));
      used.pop_back();
    } else if (used.size() < 10) {
      const auto bytes = static_cast<int64_t>(64 << random() % 6);
      used.push_back(*pool.Take("block", bytes));
      ASSERT_EQ(used.back().bytes().size(), static_cast<size_t>(bytes));
      in_use += bytes;
      most = std::max(most, in_use);
    }
    ASSERT_LE(device->usage().current, most);
  }
  pool.Trim();
  EXPECT_EQ(device->usage().current, in_use);
}

TEST(BufferPoolTest, ABudgetIsKept) {
  BufferPool pool(Limited(1000));
  pool.Give(*pool.Take("a", 600));
  // Releases the free block to stay within the limit.
  EXPECT_THAT(pool.Take("b", 900), IsOk());
  EXPECT_THAT(pool.Take("c", 1001),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(BufferPoolTest, ADeviceKeepsBlocksUntilTheBudgetIsShort) {
  const auto device = *EmulatedDevice::Create({.memory_bytes = 1 << 20});
  const auto queue = *device->CreateQueue("compute");
  const auto budget = Limited(1000);
  BufferPool pool(StateDevice(budget, *queue));
  for (const int64_t bytes : {600, 300}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(AccountedMemory block, pool.Take("a", bytes));
    TESSERA_ASSERT_OK(queue->Fill(std::byte{1}, block.bytes()));
    pool.Give(std::move(block));
  }
  pool.Trim();
  EXPECT_EQ(budget->usage().current, 900);
  EXPECT_EQ(device->counts().host_waits, 0);
  // Waits for the work on the blocks before they are freed.
  TESSERA_ASSERT_OK_AND_ASSIGN(const AccountedMemory large,
                               pool.Take("b", 900));
  EXPECT_EQ(budget->usage().current, 900);
  EXPECT_GT(device->counts().host_waits, 0);
  TESSERA_EXPECT_OK(queue->Synchronize());
}

TEST(BufferPoolTest, AnotherQueueWaitsForTheLastUse) {
  for (const bool waits : {false, true}) {
    const auto device = *EmulatedDevice::Create({.memory_bytes = 1 << 20});
    const auto compute = *device->CreateQueue("compute");
    const auto gather = *device->CreateQueue("gather");
    BufferPool pool(StateDevice(Limited(1000), *compute));
    AccountedMemory block = *pool.Take("a", 600);
    EXPECT_EQ(block.last_use().number, 0);
    TESSERA_ASSERT_OK(compute->Fill(std::byte{1}, block.bytes()));
    pool.Give(std::move(block));
    block = *pool.Take("b", 600);
    if (waits) {
      TESSERA_ASSERT_OK(gather->Wait(block.last_use().event));
    }
    EXPECT_THAT(gather->Fill(std::byte{2}, block.bytes()),
                waits ? StatusIs(absl::StatusCode::kOk)
                      : StatusIs(absl::StatusCode::kInternal));
    gather->Synchronize().IgnoreError();
  }
}

}  // namespace
}  // namespace tessera::zero3
