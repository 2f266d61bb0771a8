// Timeline: begin and end of every action of a schedule, on every rank.
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

// The rank holds `bytes` from `time` until the next change. Of several changes
// at the same time the last one counts.
struct MemoryChange {
  double time = 0;
  int64_t bytes = 0;
};

struct RankTimeline {
  std::vector<TimedAction> computations;  // In list order.
  // Other actions that took time: sends, receives and parameter actions, in
  // order of begin. They may overlap with computations.
  std::vector<TimedAction> communications;
  double busy = 0;                   // The sum of the computations' times.
  std::vector<MemoryChange> memory;  // In order of time.
  int64_t peak_bytes = 0;
  // The largest number of micro-batches held at a time, summed over the rank's
  // stages. A stage holds one from its forward's begin to the end of its last
  // backward.
  int64_t peak_activations = 0;
  TimeSpan optimizer;  // The optimizer's step; empty if there is none.

  // The begin of the first computation.
  double first() const {
    return computations.empty() ? 0 : computations.front().begin;
  }
  double last() const {
    return computations.empty() ? 0 : computations.back().end;
  }
};

// Example:
//
//   timeline.makespan;
//   timeline.BubbleRate(0);      // of rank 0
//
// The same type holds predicted times (Simulate) and measured times (Executor),
// so that both can be drawn. Times are in one unit, from the step's begin;
// memory is in bytes.
struct Timeline {
  std::vector<RankTimeline> ranks;
  double makespan = 0;  // From 0 to the last end.
  // The maximum over the ranks of the time from the first begin to the last end
  // of the rank's computations. It is the time per step if the next step's
  // warm-up fills this one's cool-down (arXiv 2401.10241, section 5.3).
  double longest_stage = 0;
  // The synchronisation of all ranks before the optimizer; empty if there is
  // none.
  TimeSpan synchronisation;

  // The share of longest_stage in which the rank computes nothing.
  double BubbleRate(int32_t rank) const;
  // The bubble rate of the rank that computes most.
  double BubbleRate() const;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_TIMELINE_H_
