#include "offload/tier/worker_pool.h"

#include <algorithm>
#include <utility>

namespace tessera::offload {

WorkerPool::WorkerPool(int threads) {
  for (int i = 0; i < std::max(threads, 1); ++i) {
    threads_.emplace_back([this] { Loop(); });
  }
}

WorkerPool::~WorkerPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

Operation WorkerPool::Run(std::function<absl::Status()> work) {
  auto [operation, completion] = Operation::Pending();
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(
      [work = std::move(work), c = completion] { c.Finish(work()); });
  return std::move(operation);
}

void WorkerPool::Loop() {
  const auto ready = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return stopping_ || !waiting_.empty();
  };
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&ready));
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace tessera::offload
