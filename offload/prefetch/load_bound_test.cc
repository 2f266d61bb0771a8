#include "offload/prefetch/load_bound.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "offload/prefetch/testing/brute_force.h"

namespace tessera::offload {
namespace {

constexpr int64_t kByteANanosecond = 1'000'000'000;

TEST(LoadBoundTest, LoadsUpToAUsePlusComputeFromIt) {
  const std::vector<BlockUse> order = {
      {"a", 10, 5}, {"b", 10, 5}, {"c", 10, 50}};
  // 10 + 60, 20 + 55, 30 + 50.
  EXPECT_EQ(StepBound(order, 100, {}, kByteANanosecond), 80);
  EXPECT_EQ(StepBound(order, 100, {}, 2 * kByteANanosecond), 65);
  EXPECT_EQ(StepBound({}, 0, {}, 1), 0);
}

TEST(LoadBoundTest, BytesAreNeverTooMany) {
  std::mt19937_64 random(4);
  int64_t bound = 0, least = 0, exact = 0;
  for (int round = 0; round < 6000; ++round) {
    const RandomStep step =
        MakeRandomStep(random, {.keys = 5,
                                .uses = 12,
                                .one_size = round % 4 < 2,
                                .overwrites = round % 2 == 0});
    const std::vector<int64_t> bytes =
        LeastBytesLoaded(step.order, step.budget, step.near);
    const std::vector<int64_t> best =
        BruteForceLeastBytes(step.order, step.budget, step.near);
    for (size_t k = 0; k < best.size(); ++k) ASSERT_LE(bytes[k], best[k]);
    bound += bytes.back();
    least += best.back();
    exact += bytes.back() == best.back();
  }
  // The bound is tight enough to be useful.
  EXPECT_GT(static_cast<double>(bound), 0.9 * static_cast<double>(least));
  EXPECT_GT(exact, 3000);
}

TEST(LoadBoundTest, NoScheduleBeatsIt) {
  std::mt19937_64 random(5);
  int tight = 0;
  for (int round = 0; round < 1500; ++round) {
    const RandomStep step =
        MakeRandomStep(random, {.keys = 4,
                                .uses = 7,
                                .one_size = round % 2 == 0,
                                .overwrites = round % 4 < 2});
    const int64_t bound =
        StepBound(step.order, step.budget, step.near, kByteANanosecond);
    const int64_t shortest =
        BruteForceShortestStep(step.order, step.budget, step.near);
    ASSERT_LE(bound, shortest);
    tight += bound == shortest;
  }
  EXPECT_GT(tight, 750);
}

TEST(LoadBoundTest, WindowsAreBoundedAndStillABound) {
  std::vector<BlockUse> order;
  for (int i = 0; i < 6000; ++i) {
    order.push_back({.key = std::to_string(i % 3000), .bytes = 1 + i % 2});
  }
  const std::vector<int64_t> bytes = LeastBytesLoaded(order, 100, {});
  // 9000 bytes; at most 100 of them stay for the second half.
  EXPECT_LE(bytes.back(), 9000);
  EXPECT_GE(bytes.back(), 8600);
}

TEST(LoadBoundTest, TransfersAreRoundedUpAndDoNotOverflow) {
  EXPECT_EQ(TransferNs(0, 3), 0);
  EXPECT_EQ(TransferNs(1, 3'000'000'000), 1);
  EXPECT_EQ(TransferNs(7, 3'000'000'000), 3);
  EXPECT_EQ(TransferNs(std::numeric_limits<int64_t>::max(), 1),
            std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace tessera::offload
