#include "tools/train/loop/memory_watch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

class MemoryWatchTest : public ::testing::Test {
 protected:
  // A step that temporarily uses `more` bytes.
  MemoryWatch::Usage Step(int64_t more = 0) {
    peak_ = std::max(peak_, resident_ + more);
    return watch_.AfterStep();
  }

  int64_t resident_ = 0;
  int64_t peak_ = 0;
  int64_t free_ = 0;  // Resident bytes that can be returned.
  bool can_restart_ = true;
  int64_t now_ns_ = 0;
  int returns_ = 0;
  MemoryWatch watch_{100 * kMiB,
                     {.read =
                          [this] {
                            return ResidentMemory{resident_, peak_};
                          },
                      .restart_peak =
                          [this] {
                            if (can_restart_) peak_ = resident_;
                            return can_restart_;
                          },
                      .return_free_memory =
                          [this] {
                            ++returns_;
                            resident_ -= free_;
                            free_ = 0;
                          },
                      .now_ns = [this] { return now_ns_ += 1'000'000'000; }}};
};

TEST_F(MemoryWatchTest, ReturnsMemoryFromNinetyPercentOn) {
  watch_.Restart();
  resident_ = 89 * kMiB;
  EXPECT_EQ(Step().notice, std::nullopt);
  EXPECT_EQ(returns_, 0);
  resident_ = 95 * kMiB;
  free_ = 20 * kMiB;
  const MemoryWatch::Usage usage = Step();
  ASSERT_TRUE(usage.notice.has_value());
  EXPECT_THAT(*usage.notice, HasSubstr("had 95.0MiB of its 100.0MiB"));
  EXPECT_THAT(*usage.notice, HasSubstr("20.0MiB of freed memory"));
  EXPECT_EQ(usage.used, 75 * kMiB);
  EXPECT_EQ(returns_, 1);
  EXPECT_EQ(watch_.peak(), 95 * kMiB);
}

TEST_F(MemoryWatchTest, NotifiesOncePerPressure) {
  watch_.Restart();
  resident_ = 99 * kMiB;
  EXPECT_TRUE(Step().notice.has_value());
  EXPECT_FALSE(Step().notice.has_value());
  EXPECT_EQ(returns_, 2);
  resident_ = 50 * kMiB;
  for (int step = 0; step < 5; ++step) {
    EXPECT_FALSE(Step().notice.has_value());
  }
  resident_ = 99 * kMiB;
  EXPECT_TRUE(Step().notice.has_value());
}

TEST_F(MemoryWatchTest, AStepIsJudgedByItsOwnPeak) {
  watch_.Restart();
  resident_ = 40 * kMiB;
  EXPECT_EQ(Step(60 * kMiB).used, 100 * kMiB);
  EXPECT_EQ(Step(30 * kMiB).used, 70 * kMiB);
  EXPECT_EQ(Step().used, 40 * kMiB);
  EXPECT_EQ(watch_.peak(), 100 * kMiB);
}

TEST_F(MemoryWatchTest, IgnoresPeakBeforeRestart) {
  watch_.Restart();
  resident_ = 99 * kMiB;
  peak_ = resident_;
  resident_ = 30 * kMiB;
  watch_.Restart();
  EXPECT_EQ(Step().used, 30 * kMiB);
}

TEST_F(MemoryWatchTest, UsesResidentMemoryIfPeakCannotRestart) {
  can_restart_ = false;
  watch_.Restart();
  resident_ = 40 * kMiB;
  EXPECT_EQ(Step(60 * kMiB).used, 40 * kMiB);
  EXPECT_EQ(Step().used, 40 * kMiB);
  EXPECT_EQ(watch_.peak(), 100 * kMiB);
}

TEST(MemoryWatchOfThisProcessTest, SeesThePeakOfAStep) {
  MemoryWatch watch(int64_t{1} << 40);
  watch.Restart();
  const int64_t before = watch.AfterStep().used;
  EXPECT_GT(before, 0);
  constexpr size_t kBytes = 64 << 20;
  void* const more = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(more, MAP_FAILED);
  std::memset(more, 'x', kBytes);
  munmap(more, kBytes);
  const int64_t during = watch.AfterStep().used;
  const int64_t after = watch.AfterStep().used;
  EXPECT_LT(after, before + 32 * kMiB);
  if (access("/proc/self/clear_refs", W_OK) == 0) {
    EXPECT_GT(during, before + 60 * kMiB);
  }
}

}  // namespace
}  // namespace tessera::train
