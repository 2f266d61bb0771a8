#include "tools/python/torch/group_lane.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <tuple>
#include <utility>

namespace tessera::torch_backend {
namespace {

std::atomic<uint64_t> launched = 0;

}  // namespace

// Callbacks that are running. Guarded by the mutex of the state.
struct GroupLane::Callback {
  const GroupLane* lane;
  uint64_t taken;
  uint64_t number;  // Of the job.
  Clock::time_point began = Clock::now();
  bool in_collective = false;
  bool released = false;  // Later jobs no longer wait for it.

  bool Blocks(Clock::time_point now) {
    released = released || (!in_collective && now - began > kPatience);
    return !released;
  }
  bool IsBefore(const Callback& other) const {
    return std::tie(taken, number) < std::tie(other.taken, other.number);
  }
};

std::shared_ptr<GroupLane> GroupLane::Create() {
  return std::shared_ptr<GroupLane>(new GroupLane);
}

uint64_t GroupLane::Now() { return launched; }

GroupLane::Callback*& GroupLane::Current() {
  thread_local Callback* current = nullptr;
  return current;
}

GroupLane::Callback* GroupLane::OwnCallback() const {
  Callback* const callback = Current();
  return callback != nullptr && callback->lane == this ? callback : nullptr;
}

bool GroupLane::IsInCallback() const { return OwnCallback() != nullptr; }

bool GroupLane::MayRun(uint64_t number) {
  const auto now = Clock::now();
  return std::none_of(
      callbacks_.begin(), callbacks_.end(), [&](Callback* callback) {
        return callback->Blocks(now) && callback->taken < number;
      });
}

bool GroupLane::IsTurnOf(const Callback& callback) {
  if (busy_ || (!jobs_.empty() && jobs_.front().first <= callback.taken)) {
    return false;
  }
  const auto now = Clock::now();
  return std::none_of(callbacks_.begin(), callbacks_.end(),
                      [&](Callback* other) {
                        return other->Blocks(now) && other->IsBefore(callback);
                      });
}

void GroupLane::AwaitChange(Lock& lock) {
  auto wake = Clock::time_point::max();
  for (const Callback* const callback : callbacks_) {
    if (callback->released || callback->in_collective) continue;
    wake = std::min(wake, callback->began + kPatience);
  }
  if (wake == Clock::time_point::max()) {
    changed_.wait(lock);
  } else {
    changed_.wait_until(lock, wake + std::chrono::milliseconds(1));
  }
}

void GroupLane::EnsureThread() {
  if (free_threads_ == 0 && !jobs_.empty()) {
    ++free_threads_;
    std::thread([self = shared_from_this()] { self->RunJobs(); }).detach();
  }
  changed_.notify_all();
}

uint64_t GroupLane::Push(Job job) {
  const Lock lock(mutex_);
  const uint64_t number = ++launched;
  jobs_.emplace_back(number, std::move(job));
  EnsureThread();
  return number;
}

void GroupLane::RunJobs() {
  Lock lock(mutex_);
  while (!closing_ || !jobs_.empty()) {
    if (busy_ || jobs_.empty() || !MayRun(jobs_.front().first)) {
      AwaitChange(lock);
    } else {
      RunFront(lock);
    }
  }
  --free_threads_;
  changed_.notify_all();
}

void GroupLane::RunFront(Lock& lock) {
  const uint64_t number = jobs_.front().first;
  Job job = std::move(jobs_.front().second);
  jobs_.pop_front();
  busy_ = true;
  lock.unlock();
  Callbacks callbacks = job();
  job = nullptr;  // Destroying its captures may take locks.
  lock.lock();
  busy_ = false;
  if (callbacks.run != nullptr) {
    RunCallbacks(lock, std::move(callbacks), number);
  }
  changed_.notify_all();
}

void GroupLane::RunCallbacks(Lock& lock, Callbacks callbacks, uint64_t number) {
  Callback callback = {this, callbacks.taken, number};
  callbacks_.push_back(&callback);
  --free_threads_;
  EnsureThread();
  lock.unlock();
  Callback* const outer = std::exchange(Current(), &callback);
  callbacks.run();
  callbacks.run = nullptr;
  Current() = outer;
  lock.lock();
  ++free_threads_;
  std::erase(callbacks_, &callback);
}

bool GroupLane::TryEnter() {
  Lock lock(mutex_);
  Callback* const callback = OwnCallback();
  if (callback == nullptr || callback->released) {
    const auto number = launched + 1;
    if (busy_ || !jobs_.empty() || !MayRun(number)) return false;
    ++launched;
    busy_ = true;
    return true;
  }
  callback->in_collective = true;
  changed_.notify_all();
  while (!IsTurnOf(*callback)) AwaitChange(lock);
  busy_ = true;
  return true;
}

void GroupLane::Leave() {
  const Lock lock(mutex_);
  busy_ = false;
  if (Callback* const callback = OwnCallback()) {
    callback->in_collective = false;
    callback->began = Clock::now();
  }
  changed_.notify_all();
}

void GroupLane::BeforeWait(uint64_t number) {
  Callback* const callback = OwnCallback();
  if (callback == nullptr || number <= callback->taken) return;
  const Lock lock(mutex_);
  callback->released = true;
  changed_.notify_all();
}

bool GroupLane::AwaitIdle(Clock::time_point deadline) {
  Lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] {
    return !busy_ && jobs_.empty() &&
           std::all_of(
               callbacks_.begin(), callbacks_.end(),
               [](Callback* callback) { return callback == Current(); });
  });
}

void GroupLane::Close() {
  Lock lock(mutex_);
  closing_ = true;
  changed_.notify_all();
  while (busy_ || !jobs_.empty() || free_threads_ > 0) AwaitChange(lock);
}

}  // namespace tessera::torch_backend
