#include "offload/optimizer/parallel_for_pool.h"

#include <cstdint>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace tessera::offload {

ParallelForPool::ParallelForPool(int threads) {
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this] { Work(); });
  }
}

ParallelForPool::~ParallelForPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  for (std::thread& worker : workers_) worker.join();
}

void ParallelForPool::Loop::TakePart() {
  while (true) {
    const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= count) return;
    pass(i);
  }
}

void ParallelForPool::Run(int64_t count,
                          absl::FunctionRef<void(int64_t)> pass) {
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) pass(i);
    return;
  }
  absl::MutexLock only(&one_loop_);
  Loop loop{pass, count};
  {
    absl::MutexLock lock(&mutex_);
    loop_ = &loop;
    ++number_;
  }
  loop.TakePart();
  // A worker that has not woken up yet finds no loop.
  absl::MutexLock lock(&mutex_);
  loop_ = nullptr;
  mutex_.Await(absl::Condition(
      +[](int* busy) { return *busy == 0; }, &busy_));
}

void ParallelForPool::Work() {
  int64_t done = 0;  // The number of the last loop.
  while (true) {
    Loop* loop = nullptr;
    {
      const auto is_called = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stop_ || (loop_ != nullptr && number_ != done);
      };
      absl::MutexLock lock(&mutex_, absl::Condition(&is_called));
      if (stop_) return;
      loop = loop_;
      done = number_;
      ++busy_;
    }
    loop->TakePart();
    absl::MutexLock lock(&mutex_);
    --busy_;
  }
}

}  // namespace tessera::offload
