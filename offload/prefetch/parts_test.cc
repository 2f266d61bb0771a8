// Tests the components of a prefetcher: its memory, its flows, its recorder.
#include <utility>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/prefetch/near_memory.h"
#include "offload/prefetch/near_pool.h"
#include "offload/prefetch/prefetcher.h"

namespace tessera::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(BufferPoolTest, ReusesBuffersOfSameSize) {
  NearBufferPool pool(HostMemory(), 100);
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer a, pool.Take(60));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 4096, 0u);
  EXPECT_EQ(pool.free_bytes(), 40);
  EXPECT_THAT(pool.Take(41), StatusIs(absl::StatusCode::kResourceExhausted,
                                      HasSubstr("40 of 100 are free")));
  EXPECT_THAT(pool.Take(-1), StatusIs(absl::StatusCode::kResourceExhausted));
  const std::byte* const address = a.data();
  pool.GiveBack(std::move(a));
  EXPECT_EQ(pool.kept_bytes(), 60);
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer again, pool.Take(60));
  EXPECT_EQ(again.data(), address);
  EXPECT_EQ(pool.kept_bytes(), 0);
}

TEST(BufferPoolTest, EvictsKeptBuffersForOtherSizes) {
  NearBufferPool pool(HostMemory(), 100);
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer a, pool.Take(60));
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer b, pool.Take(30));
  pool.GiveBack(std::move(a));
  pool.GiveBack(std::move(b));
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer c, pool.Take(50));
  EXPECT_EQ(pool.kept_bytes(), 30);
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer none, pool.Take(0));
  pool.GiveBack(std::move(none));
  pool.GiveBack(std::move(c));
  EXPECT_EQ(pool.taken_bytes(), 0);
  pool.Trim();
  EXPECT_EQ(pool.kept_bytes(), 0);
}

TEST(FlowTest, CountsBytesAndBusyTime) {
  Flow flow(2);
  flow.Start(100);
  EXPECT_TRUE(flow.HasRoom());
  flow.Start(110);
  EXPECT_FALSE(flow.HasRoom());
  flow.Finish(150, 7);
  EXPECT_EQ(flow.busy_ns(160), 60);
  flow.Finish(200, 0);
  EXPECT_EQ(flow.busy_ns(1000), 100);
  flow.Start(1000);
  flow.Finish(1001, 5);
  EXPECT_EQ(flow.busy_ns(2000), 101);
  EXPECT_EQ(flow.bytes(), 12);
}

TEST(StepRecorderTest, RecordsUsesAndTimes) {
  StepRecorder recorder;
  recorder.Ask(0);
  recorder.Begin("a", 10, 5);
  recorder.Ask(25);
  recorder.Begin("b", 20, 30);
  recorder.Ask(31);  // fails, and is requested again
  recorder.Ask(40);
  recorder.Begin("a", 10, 44, /*overwrite=*/true);
  recorder.Begin("a", 10, 44);
  EXPECT_THAT(recorder.Take(50),
              ElementsAre(BlockUse{"a", 10, 20}, BlockUse{"b", 20, 10},
                          BlockUse{"a", 10, 0, true}, BlockUse{"a", 10, 6}));
  EXPECT_THAT(recorder.Take(60), IsEmpty());
}

}  // namespace
}  // namespace tessera::offload
