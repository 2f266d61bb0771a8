#include "collectives/engine/lanes.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

TEST(CollectiveLaneTest, JobsRunOneAtATimeInTheirOrder) {
  std::vector<int> ran;  // Written by one job at a time.
  {
    CollectiveLane lane;
    for (int i = 0; i < 200; ++i) lane.Push([&ran, i] { ran.push_back(i); });
  }
  ASSERT_EQ(ran.size(), 200u);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST(CollectiveLaneTest, CallerOwnsIdleLaneUntilItLeaves) {
  std::atomic<bool> ran = false;
  CollectiveLane lane;
  ASSERT_TRUE(lane.TryEnter());
  EXPECT_FALSE(lane.TryEnter());
  lane.Push([&] { ran = true; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(ran);
  lane.Leave();
  while (!ran) std::this_thread::yield();
}

TEST(CollectiveLaneTest, CallersDoNotOvertakeQueuedJobs) {
  CollectiveLane lane;
  std::atomic<bool> release = false;
  lane.Push([&] {
    while (!release) std::this_thread::yield();
  });
  EXPECT_FALSE(lane.TryEnter());
  release = true;
  while (!lane.TryEnter()) std::this_thread::yield();
  lane.Leave();
}

TEST(CollectiveLaneTest, BlockingAndStartedCallsShareTheLane) {
  int shared = 0;  // The lane is the only lock.
  CollectiveLane lane;
  std::atomic<int> pushed_ran = 0;
  std::vector<std::thread> threads;
  std::atomic<int> entered = 0;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        if (lane.TryEnter()) {
          ++shared;
          ++entered;
          lane.Leave();
        } else {
          lane.Push([&] {
            ++shared;
            ++pushed_ran;
          });
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (entered + pushed_ran < 900) std::this_thread::yield();
  while (!lane.TryEnter()) std::this_thread::yield();
  EXPECT_EQ(shared, 900);
  lane.Leave();
}

}  // namespace

}  // namespace tessera::collectives
