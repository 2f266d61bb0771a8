#include "tools/train/worker/memory/memory_watch.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

class MemoryWatchTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMiB = 1 << 20;

  int64_t resident_ = 0;
  int64_t free_ = 0;  // Of it, what can be returned.
  int64_t now_ns_ = 0;
  int returns_ = 0;
  MemoryWatch watch_{100 * kMiB,
                     {.resident = [this] { return resident_; },
                      .return_free_memory =
                          [this] {
                            ++returns_;
                            resident_ -= free_;
                            free_ = 0;
                          },
                      .now_ns = [this] { return now_ns_ += 1'000'000'000; }}};
};

TEST_F(MemoryWatchTest, ReturnsMemoryFromNinetyPercentOn) {
  resident_ = 89 * kMiB;
  EXPECT_EQ(watch_.AfterStep(), std::nullopt);
  EXPECT_EQ(returns_, 0);
  resident_ = 95 * kMiB;
  free_ = 20 * kMiB;
  const auto notice = watch_.AfterStep();
  ASSERT_TRUE(notice.has_value());
  EXPECT_THAT(*notice, HasSubstr("95.0MiB of its 100.0MiB"));
  EXPECT_THAT(*notice, HasSubstr("leaves 75.0MiB"));
  EXPECT_EQ(returns_, 1);
}

TEST_F(MemoryWatchTest, SaysItOnceWhileThePressureLasts) {
  resident_ = 99 * kMiB;
  EXPECT_TRUE(watch_.AfterStep().has_value());
  EXPECT_FALSE(watch_.AfterStep().has_value());
  EXPECT_EQ(returns_, 2);
  resident_ = 50 * kMiB;
  for (int step = 0; step < 5; ++step) {
    EXPECT_FALSE(watch_.AfterStep().has_value());
  }
  resident_ = 99 * kMiB;
  EXPECT_TRUE(watch_.AfterStep().has_value());
}

}  // namespace
}  // namespace tessera::train
