#include "base/os/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "base/os/processors.h"

namespace tessera {
namespace {

// Waits until `value` is no longer `old`.
void AwaitChange(const std::atomic<uint32_t>& value, uint32_t old,
                 bool may_spin) {
  constexpr int kSpins = 2000;  // 15 to 80 us, by the processor's pause.
  constexpr int kYields = 100;
  for (int i = 0; may_spin && i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    SpinPause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    sched_yield();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

std::shared_ptr<ThreadPool> ThreadPool::OrNew(std::shared_ptr<ThreadPool> pool,
                                              int threads) {
  return pool != nullptr ? std::move(pool)
                         : std::make_shared<ThreadPool>(threads);
}

ThreadPool::ThreadPool(int threads, Team team)
    : threads_(std::max(threads, 1)), team_(team), may_spin_(false) {}

ThreadPool::ThreadPool(int threads)
    : threads_(std::max(threads, 1)),
      may_spin_(threads <= AvailableProcessors()) {
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this] { Work(); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  loops_.fetch_add(1, std::memory_order_release);
  loops_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::TakePass() {
  uint32_t left = left_.load(std::memory_order_acquire);
  do {
    if (left == 0) return false;
  } while (!left_.compare_exchange_weak(
      left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire));
  // The loop cannot end before this pass has returned.
  (*pass_.load(std::memory_order_relaxed))(left - 1);
  if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    running_.notify_one();
  }
  return true;
}

void ThreadPool::RunOnTeam(uint32_t count, Pass pass) const {
  struct Loop {
    std::atomic<uint32_t> taken = 0;
    uint32_t count = 0;
    Pass pass;
  } loop = {.count = count, .pass = pass};
  const auto member = [](void* data) {
    auto& own = *static_cast<Loop*>(data);
    while (true) {
      const uint32_t next = own.taken.fetch_add(1, std::memory_order_relaxed);
      if (next >= own.count) return;
      own.pass(next);
    }
  };
  team_(member, &loop, static_cast<unsigned>(threads_), 0);
}

void ThreadPool::Run(int64_t count, Pass pass) {
  if (threads_ == 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) pass(i);
    return;
  }
  if (team_ != nullptr) return RunOnTeam(static_cast<uint32_t>(count), pass);
  absl::MutexLock only(&one_loop_);
  const auto passes = static_cast<uint32_t>(count);
  pass_.store(&pass, std::memory_order_relaxed);
  running_.store(passes, std::memory_order_relaxed);
  left_.store(passes, std::memory_order_release);
  loops_.fetch_add(1, std::memory_order_release);
  loops_.notify_all();
  while (TakePass()) {
  }
  uint32_t running = running_.load(std::memory_order_acquire);
  while (running != 0) {
    AwaitChange(running_, running, may_spin_);
    running = running_.load(std::memory_order_acquire);
  }
}

void ThreadPool::Work() {
  uint32_t loop = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    while (TakePass()) {
    }
    AwaitChange(loops_, loop, may_spin_);
    loop = loops_.load(std::memory_order_acquire);
  }
}

}  // namespace tessera
