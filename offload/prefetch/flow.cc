#include "offload/prefetch/flow.h"

#include <algorithm>
#include <cmath>

namespace tessera::offload {

namespace {

constexpr double kGain = 1.03;
constexpr double kLoss = 0.985;
constexpr double kUpset = 1.0 / 3;
constexpr int kLongestRest = 16;

}  // namespace

QueueDepth::QueueDepth(int most, int initial)
    : most_(std::max(most, 1)), depth_(std::clamp(initial, 1, most_)) {}

void QueueDepth::Record(int64_t bytes, int64_t busy_ns) {
  if (bytes <= 0 || busy_ns <= 0) return;
  const double rate = static_cast<double>(bytes) / static_cast<double>(busy_ns);
  switch (phase_) {
    case Phase::kUp:
      return JudgeUp(rate);
    case Phase::kDown:
      return JudgeDown(rate);
    case Phase::kRest:
      if (rate_ > 0 && std::abs(rate - rate_) > kUpset * rate_) {
        rest_ = 1;
        resting_ = 0;
        next_up_ = true;
        rate_ = rate;
      }
      rate_ = rate_ == 0 ? rate : 0.5 * (rate_ + rate);
      if (--resting_ <= 0) TryNext();
  }
}

void QueueDepth::Rest() {
  phase_ = Phase::kRest;
  resting_ = rest_;
}

void QueueDepth::TryNext() {
  const bool up = next_up_ ? depth_ < most_ : depth_ == 1;
  next_up_ = !next_up_;
  if (up && depth_ < most_) {
    phase_ = Phase::kUp;
    ++depth_;
  } else if (!up && depth_ > 1) {
    phase_ = Phase::kDown;
    --depth_;
  } else {
    Rest();
  }
}

void QueueDepth::JudgeUp(double rate) {
  if (rate >= kGain * rate_) {
    rate_ = rate;
    rest_ = 1;
    if (depth_ < most_) {
      ++depth_;
      return;
    }
  } else {
    --depth_;
    rest_ = std::min(2 * rest_, kLongestRest);
  }
  Rest();
}

void QueueDepth::JudgeDown(double rate) {
  if (rate > kLoss * rate_) {
    rest_ = 1;
    if (depth_ > 1) {
      --depth_;
      return;
    }
  } else {
    ++depth_;
    rest_ = std::min(2 * rest_, kLongestRest);
  }
  Rest();
}

void Flow::Start(int64_t now_ns) {
  busy_ns_ = busy_ns(now_ns);
  since_ns_ = now_ns;
  ++in_flight_;
}

void Flow::Finish(int64_t now_ns, int64_t bytes) {
  busy_ns_ = busy_ns(now_ns);
  since_ns_ = now_ns;
  window_.full += in_flight_ >= depth_.value();
  window_.bytes += bytes;
  ++window_.count;
  bytes_ += bytes;
  --in_flight_;
  if (window_.count >= std::max(8, 2 * depth_.value())) CloseWindow(now_ns);
}

void Flow::CloseWindow(int64_t now_ns) {
  const int64_t busy = busy_ns(now_ns);
  if (2 * window_.full >= window_.count) {
    depth_.Record(window_.bytes, busy - window_.busy_ns_before);
  }
  window_ = {.busy_ns_before = busy};
}

}  // namespace tessera::offload
