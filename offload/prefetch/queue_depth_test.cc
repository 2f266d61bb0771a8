#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "offload/prefetch/flow.h"

namespace tessera::offload {
namespace {

// Runs against a device that moves rate(depth) bytes per nanosecond, measured
// with relative noise `noise`; returns the depths of the last half.
std::vector<int> Settle(QueueDepth& depth,
                        const std::function<double(int)>& rate,
                        double noise = 0, int windows = 400) {
  std::mt19937_64 random(8);
  std::uniform_real_distribution<double> factor(1 - noise, 1 + noise);
  std::vector<int> seen;
  for (int i = 0; i < windows; ++i) {
    const int d = depth.value();
    depth.Record(static_cast<int64_t>(1e6 * rate(d) * factor(random)),
                 1'000'000);
    if (i >= windows / 2) seen.push_back(d);
  }
  return seen;
}

double Mean(const std::vector<int>& values) {
  double sum = 0;
  for (const int v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

TEST(QueueDepthTest, FindsTheKneeOfADevice) {
  for (const int knee : {1, 2, 3, 5, 8, 13, 24}) {
    QueueDepth depth(32);
    const std::vector<int> seen =
        Settle(depth, [knee](int d) { return std::min(d, knee) * 100.0; });
    EXPECT_NEAR(Mean(seen), knee, 0.6) << knee;
  }
}

TEST(QueueDepthTest, FindsKneeDespiteNoise) {
  QueueDepth depth(32);
  const std::vector<int> seen = Settle(
      depth, [](int d) { return std::min(d, 6) * 100.0; }, /*noise=*/0.02,
      2000);
  EXPECT_GT(Mean(seen), 4.5);
  EXPECT_LT(Mean(seen), 9.0);
}

TEST(QueueDepthTest, BacksOffIfThroughputDrops) {
  QueueDepth depth(32, 20);
  const std::vector<int> seen = Settle(
      depth, [](int d) { return d <= 4 ? d * 100.0 : 400.0 - 10 * (d - 4); });
  EXPECT_NEAR(Mean(seen), 4, 0.7);
}

TEST(QueueDepthTest, FollowsChangingDevice) {
  QueueDepth depth(32);
  Settle(depth, [](int d) { return std::min(d, 12) * 100.0; });
  EXPECT_NEAR(depth.value(), 12, 1);
  Settle(depth, [](int d) { return std::min(d, 2) * 100.0; });
  EXPECT_NEAR(depth.value(), 2, 1);
  Settle(depth, [](int d) { return std::min(d, 16) * 100.0; });
  EXPECT_NEAR(depth.value(), 16, 1);
}

TEST(QueueDepthTest, StaysWithinItsLimitsAndIgnoresEmptyWindows) {
  QueueDepth one(0, 7);
  EXPECT_EQ(one.value(), 1);
  for (const int d : Settle(one, [](int d) { return d * 100.0; })) {
    EXPECT_EQ(d, 1);
  }
  QueueDepth depth(4, 3);
  for (int i = 0; i < 100; ++i) {
    depth.Record(0, 5);
    depth.Record(5, 0);
    depth.Record(-1, -1);
  }
  EXPECT_EQ(depth.value(), 3);
  for (const int d : Settle(depth, [](int d) { return d * 100.0; })) {
    EXPECT_GE(d, 3);
    EXPECT_LE(d, 4);
  }
}

}  // namespace
}  // namespace tessera::offload
