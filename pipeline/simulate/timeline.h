// Timeline: begin and end of every action of a schedule, on every rank.
//
//   timeline.makespan;
//   timeline.BubbleRate(0);      // of rank 0
//
// The same type holds predicted (Simulate) and measured times (Executor), so
// that both are drawn alike. Times are in one unit, from the step's begin;
// memory is in bytes.
#ifndef TESSERA_PIPELINE_SIMULATE_TIMELINE_H_
#define TESSERA_PIPELINE_SIMULATE_TIMELINE_H_

#include <cstdint>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

struct TimedAction {
  Action action;
  double begin = 0;
  double end = 0;
};

struct TimeSpan {
  double begin = 0;
  double end = 0;
};

// From `time` on the rank holds `bytes`, until the next change; of several at
// one time the last one lasts.
struct MemoryChange {
  double time = 0;
  int64_t bytes = 0;
};

struct RankTimeline {
  std::vector<TimedAction> computations;  // In their order.
  // Other actions that took time: sends, receives and parameter actions, in
  // order of begin. They may overlap with computations.
  std::vector<TimedAction> communications;
  double busy = 0;                   // The sum of the computations' times.
  std::vector<MemoryChange> memory;  // In the order of time.
  int64_t peak_bytes = 0;
  // Micro-batches of which the rank's stages hold something, counted by stage:
  // from the forward's begin to the end of the last backward.
  int64_t peak_activations = 0;
  TimeSpan optimizer;  // The optimizer's step; empty where there is none.

  // The begin of the first computation.
  double first() const {
    return computations.empty() ? 0 : computations.front().begin;
  }
  double last() const {
    return computations.empty() ? 0 : computations.back().end;
  }
};

struct Timeline {
  std::vector<RankTimeline> ranks;
  double makespan = 0;  // From 0 to the end of whatever is last.
  // The time from the first begin to the last end of a rank's computations, for
  // the rank with the longest: the time of a step if the next step's warm-up
  // fills this one's cool-down (arXiv 2401.10241, section 5.3).
  double longest_stage = 0;
  // All ranks together, before the optimizer; empty if there is none.
  TimeSpan synchronisation;

  // The share of longest_stage in which the rank computes nothing.
  double BubbleRate(int32_t rank) const;
  // The bubble rate of the rank that computes most.
  double BubbleRate() const;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_TIMELINE_H_
