#include "collectives/work.h"

#include <time.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_now.h"
#include "collectives/engine/tagged_messages.h"

namespace tessera::collectives {

namespace {

constinit thread_local std::atomic<int64_t>* watched_wait = nullptr;

}  // namespace

void WatchWaits(std::atomic<int64_t>* since) { watched_wait = since; }

int64_t CoarseNanos() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// An outer mark remains.
WaitMark::WaitMark() : since_(watched_wait) {
  if (since_ == nullptr) return;
  if (since_->load(std::memory_order_relaxed) != 0) {
    since_ = nullptr;
    return;
  }
  since_->store(CoarseNanos(), std::memory_order_relaxed);
}

WaitMark::~WaitMark() {
  if (since_ != nullptr) since_->store(0, std::memory_order_relaxed);
}

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

bool WorkState::WaitAtMost(absl::Duration timeout) {
  if (done()) return true;
  if (waits_for_waiter_.load(std::memory_order_acquire)) {
    done_.store(true, std::memory_order_release);
    return true;
  }
  const WaitMark mark;
  std::unique_lock lock(mutex_);
  if (timeout == absl::InfiniteDuration()) {
    finished_.wait(lock, [this] { return done(); });
    return true;
  }
  const absl::Duration most = std::min(timeout, absl::Hours(24 * 365));
  return finished_.wait_for(lock, absl::ToChronoNanoseconds(most),
                            [this] { return done(); });
}

absl::Status WorkState::Wait() {
  WaitAtMost(absl::InfiniteDuration());
  return status_;
}

absl::StatusOr<bool> WorkState::Test() {
  if (!done()) return false;
  if (!status_.ok()) return status_;
  return true;
}

std::optional<Rank> Work::source() const {
  const auto* const message =
      dynamic_cast<const TaggedMessage*>(event_.state().get());
  return message == nullptr ? std::nullopt : message->source();
}

absl::Status Work::WaitFor(absl::Duration timeout) const {
  const absl::Duration deadline = SteadyNow() + timeout;
  const auto late = [&] {
    return absl::DeadlineExceededError(
        absl::StrCat("the operation has not completed after ",
                     absl::FormatDuration(timeout), "; it continues"));
  };
  if (auto* const host = dynamic_cast<WorkState*>(event_.state().get())) {
    return host->WaitAtMost(timeout) ? host->status() : late();
  }
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(const bool happened, Test());
    if (happened) return absl::OkStatus();
    if (SteadyNow() >= deadline) return late();
    absl::SleepFor(absl::Microseconds(50));
  }
}

}  // namespace tessera::collectives
