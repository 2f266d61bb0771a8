#include "base/os/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ThreadPool, CallsEachPassOnce) {
  for (int threads : {-1, 1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), std::max(threads, 1));
    for (int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<int> calls(static_cast<size_t>(count));
      pool.Run(count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(count), 1));
    }
  }
}

TEST(ThreadPool, UsesTheThreadsOfAnotherRuntime) {
  static int teams = 0;
  const ThreadPool::Team team = [](void (*member)(void*), void* data,
                                   unsigned threads, unsigned) {
    ++teams;
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(member, data);
    member(data);
    for (std::thread& other : others) other.join();
  };
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads, team);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 7, 1000}) {
      teams = 0;
      std::vector<int> calls(static_cast<size_t>(count));
      pool.Run(count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(count), 1));
      EXPECT_EQ(teams, threads > 1 && count > 1 ? 1 : 0);
    }
  }
}

TEST(ThreadPool, RunReturnsAfterEveryPass) {
  ThreadPool pool(4);
  for (int round = 0; round < 2000; ++round) {
    // On this stack, missing synchronisation would be a race.
    int64_t values[5] = {};
    pool.Run(5, [&](int64_t i) { values[i] = round + i; });
    for (int64_t i = 0; i < 5; ++i) ASSERT_EQ(values[i], round + i);
  }
}

TEST(ThreadPool, WakesSleepingThreads) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    // Two passes wait for each other, so two threads must take them.
    std::atomic<int> arrived{0};
    pool.Run(2, [&](int64_t) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 2);
  }
}

TEST(ThreadPool, MayHaveMoreThreadsThanProcessors) {
  ThreadPool pool(64);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 20; ++round) {
    pool.Run(1000, [&](int64_t i) { sum += i; });
  }
  EXPECT_EQ(sum, 20 * 499500);
}

TEST(ThreadPool, OrNewReturnsExistingPool) {
  const auto pool = std::make_shared<ThreadPool>(2);
  EXPECT_EQ(ThreadPool::OrNew(pool, 5), pool);
  EXPECT_EQ(ThreadPool::OrNew(nullptr, 3)->threads(), 3);
}

TEST(ThreadPool, ServesCallersInTurn) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        pool.Run(10, [&](int64_t i) { sum += i; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 200 * 45);
}

}  // namespace
}  // namespace tessera
