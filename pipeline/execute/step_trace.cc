#include "pipeline/execute/step_trace.h"

#include <algorithm>
#include <chrono>

namespace tessera::pipeline {
namespace {

int64_t NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void StepTrace::Begin() {
  timeline_.computations.clear();  // Their memory stays.
  timeline_.communications.clear();
  timeline_.memory.clear();
  timeline_.busy = 0;
  timeline_.peak_bytes = 0;
  timeline_.peak_activations = 0;
  bytes_ = 0;
  activations_ = 0;
  if (enabled_) origin_ns_ = NowNanos();
}

double StepTrace::Now() const {
  return enabled_ ? static_cast<double>(NowNanos() - origin_ns_) * 1e-9 : 0;
}

void StepTrace::Computed(const Action& action, double begin) {
  if (!enabled_) return;
  const double end = Now();
  timeline_.computations.push_back({action, begin, end});
  timeline_.busy += end - begin;
}

void StepTrace::Communicated(const Action& action, double begin) {
  if (enabled_) timeline_.communications.push_back({action, begin, Now()});
}

void StepTrace::HoldBytes(int64_t more) {
  bytes_ += more;
  timeline_.peak_bytes = std::max(timeline_.peak_bytes, bytes_);
  if (enabled_) timeline_.memory.push_back({Now(), bytes_});
}

void StepTrace::HoldActivations(int64_t more) {
  activations_ += more;
  timeline_.peak_activations =
      std::max(timeline_.peak_activations, activations_);
}

void StepTrace::HoldAsIn(const RankTimeline& recorded) {
  timeline_.peak_bytes = std::max(timeline_.peak_bytes, recorded.peak_bytes);
  timeline_.peak_activations =
      std::max(timeline_.peak_activations, recorded.peak_activations);
}

void StepTrace::Finish() {
  std::stable_sort(timeline_.communications.begin(),
                   timeline_.communications.end(),
                   [](const TimedAction& a, const TimedAction& b) {
                     return a.begin < b.begin;
                   });
}

}  // namespace tessera::pipeline
