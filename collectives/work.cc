#include "collectives/work.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace tessera::collectives {

void WorkState::Finish(absl::Status status) {
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
  done_.store(true, std::memory_order_release);
  finished_.notify_all();
}

void WorkState::FinishWhenWaitedFor(absl::Status status) {
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
  waits_for_waiter_.store(true, std::memory_order_release);
}

bool WorkState::WaitUntil(absl::Time deadline) {
  if (done()) return true;
  if (waits_for_waiter_.load(std::memory_order_acquire)) {
    done_.store(true, std::memory_order_release);
    return true;
  }
  std::unique_lock lock(mutex_);
  if (deadline == absl::InfiniteFuture()) {
    finished_.wait(lock, [this] { return done(); });
    return true;
  }
  return finished_.wait_until(lock, absl::ToChronoTime(deadline),
                              [this] { return done(); });
}

absl::Status Work::Wait() const {
  state_->WaitUntil(absl::InfiniteFuture());
  return state_->status();
}

absl::StatusOr<bool> Work::Test() const {
  if (!state_->done()) return false;
  if (!state_->status().ok()) return state_->status();
  return true;
}

absl::Status Work::WaitFor(absl::Duration timeout) const {
  if (state_->WaitUntil(absl::Now() + timeout)) return state_->status();
  return absl::DeadlineExceededError(
      absl::StrCat("the operation has not completed after ",
                   absl::FormatDuration(timeout), "; it continues"));
}

}  // namespace tessera::collectives
