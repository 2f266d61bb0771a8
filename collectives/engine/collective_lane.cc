#include "collectives/engine/collective_lane.h"

#include <utility>

namespace tessera::collectives {

CollectiveLane::~CollectiveLane() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool CollectiveLane::TryEnter() {
  const std::lock_guard lock(mutex_);
  if (busy_ || !jobs_.empty()) return false;
  busy_ = true;
  return true;
}

void CollectiveLane::Leave() {
  const std::lock_guard lock(mutex_);
  busy_ = false;
  if (!jobs_.empty()) changed_.notify_all();
}

void CollectiveLane::Push(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) thread_ = std::thread([this] { RunJobs(); });
  changed_.notify_all();
}

void CollectiveLane::RunJobs() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] {
      return (!busy_ && !jobs_.empty()) || (closing_ && jobs_.empty());
    });
    if (jobs_.empty()) return;
    busy_ = true;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
    busy_ = false;
  }
}

}  // namespace tessera::collectives
