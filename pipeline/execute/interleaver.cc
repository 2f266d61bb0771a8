#include "pipeline/execute/interleaver.h"

namespace tessera::pipeline {

Interleaver::~Interleaver() {
  if (!thread_.joinable()) return;
  {
    const absl::MutexLock lock(&mutex_);
    is_closing_ = true;
  }
  thread_.join();
}

void Interleaver::Await(Turn turn) {
  const auto is_there = [this, turn]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return turn_ == turn || is_closing_;
  };
  mutex_.Await(absl::Condition(&is_there));
}

void Interleaver::Switch(Turn to) {
  listener_();
  turn_ = to;
}

// Runs second tasks that a Yield of the first has started.
void Interleaver::Work() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    Await(Turn::kSecond);
    if (is_closing_) return;
    const absl::FunctionRef<absl::Status()> task = *second_;
    mutex_.Unlock();
    const absl::Status status = task();
    mutex_.Lock();
    second_status_ = status;
    has_second_ = false;
    if (has_first_) listener_();
    turn_ = Turn::kFirst;
  }
}

absl::Status Interleaver::Run(absl::FunctionRef<absl::Status()> first,
                              absl::FunctionRef<absl::Status()> second) {
  {
    const absl::MutexLock lock(&mutex_);
    turn_ = Turn::kFirst;
    has_first_ = has_second_ = true;
    has_begun_ = false;
    second_ = &second;
    second_status_ = absl::OkStatus();
  }
  absl::Status status = first();
  absl::MutexLock lock(&mutex_);
  has_first_ = false;
  if (has_second_ && has_begun_) {
    Switch(Turn::kSecond);
    Await(Turn::kFirst);
  } else if (has_second_ && status.ok()) {
    Switch(Turn::kOnlySecond);
    mutex_.Unlock();
    const absl::Status of_second = second();
    mutex_.Lock();
    second_status_ = of_second;
  }
  has_second_ = false;
  turn_ = Turn::kNobody;
  second_ = nullptr;
  status.Update(second_status_);
  return status;
}

bool Interleaver::has_other() const {
  const absl::MutexLock lock(&mutex_);
  return (turn_ == Turn::kFirst && has_second_) ||
         (turn_ == Turn::kSecond && has_first_);
}

void Interleaver::Yield() {
  const absl::MutexLock lock(&mutex_);
  if (turn_ == Turn::kFirst && has_second_) {
    if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
    has_begun_ = true;
    Switch(Turn::kSecond);
    Await(Turn::kFirst);
  } else if (turn_ == Turn::kSecond && has_first_) {
    Switch(Turn::kFirst);
    Await(Turn::kSecond);
  }
}

}  // namespace tessera::pipeline
