#include "offload/tier/operation.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera::offload {

using operation_internal::State;

void Completion::Finish(absl::Status status) const {
  std::vector<std::function<void(const absl::Status&)>> listeners;
  {
    absl::MutexLock lock(&state_->mutex);
    if (state_->done) return;
    state_->done = true;
    state_->status = status;
    listeners.swap(state_->listeners);
  }
  for (const auto& listener : listeners) listener(status);
}

Operation::Operation(Operation&& other) noexcept
    : state_(std::move(other.state_)), status_(std::move(other.status_)) {}

Operation& Operation::operator=(Operation&& other) noexcept {
  if (this == &other) return *this;
  Wait().IgnoreError();
  state_ = std::move(other.state_);
  status_ = std::move(other.status_);
  return *this;
}

Operation::~Operation() { Wait().IgnoreError(); }

std::pair<Operation, Completion> Operation::Pending() {
  auto state = std::make_shared<State>();
  Operation operation;
  operation.state_ = state;
  return {std::move(operation), Completion(std::move(state))};
}

bool Operation::Test() const {
  if (state_ == nullptr) return true;
  absl::MutexLock lock(&state_->mutex);
  return state_->done;
}

absl::Status Operation::Wait() const {
  if (state_ == nullptr) return status_;
  absl::MutexLock lock(&state_->mutex);
  state_->mutex.Await(absl::Condition(
      +[](State* state) ABSL_NO_THREAD_SAFETY_ANALYSIS { return state->done; },
      state_.get()));
  return state_->status;
}

void Operation::OnDone(
    std::function<void(const absl::Status&)> listener) const {
  absl::Status status = status_;
  if (state_ != nullptr) {
    absl::MutexLock lock(&state_->mutex);
    if (!state_->done) {
      state_->listeners.push_back(std::move(listener));
      return;
    }
    status = state_->status;
  }
  listener(status);
}

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
