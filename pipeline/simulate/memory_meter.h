// MemoryMeter: what a rank holds over time.
//
//   MemoryMeter meter(/*keep_curve=*/true);
//   meter.Change(0.5, +100);
//   meter.Finish(line);       // line.memory, line.peak_bytes
#ifndef TESSERA_PIPELINE_SIMULATE_MEMORY_METER_H_
#define TESSERA_PIPELINE_SIMULATE_MEMORY_METER_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

class MemoryMeter {
 public:
  // Changes may only come out of the order of time where the curve is kept.
  explicit MemoryMeter(bool keep_curve) : keep_curve_(keep_curve) {}

  void Reserve(size_t changes) {
    if (keep_curve_) changes_.reserve(changes);
  }

  // From `time` on the rank holds so many bytes more, or less. Of changes at
  // one time the first that is called for comes first.
  void Change(double time, int64_t bytes) {
    if (bytes == 0) return;
    if (keep_curve_) {
      sorted_ = sorted_ && (changes_.empty() || changes_.back().time <= time);
      changes_.push_back({time, bytes});
    } else {
      Hold(bytes);
    }
  }

  // Fills in `memory` and `peak_bytes`.
  void Finish(RankTimeline& line) {
    if (!sorted_) {
      std::stable_sort(
          changes_.begin(), changes_.end(),
          [](const auto& a, const auto& b) { return a.time < b.time; });
    }
    for (MemoryChange& change : changes_) {
      Hold(change.bytes);
      change.bytes = held_;
    }
    line.memory = std::move(changes_);
    line.peak_bytes = peak_;
  }

 private:
  void Hold(int64_t bytes) {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }

  bool keep_curve_;
  bool sorted_ = true;
  std::vector<MemoryChange> changes_;  // By how much; in Finish, to what.
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_MEMORY_METER_H_
