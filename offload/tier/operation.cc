#include "offload/tier/operation.h"

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

}  // namespace tessera::offload
