// Timeline: when every action of a schedule began and ended, on every rank.
//
//   timeline.makespan;
//   timeline.BubbleRate(0);      // of rank 0
//
// The same type for what is predicted (Simulate) and what was measured
// (Executor), so that both are drawn alike. Times are in one unit, from the
// step's begin; memory is bytes.
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
  // Everything else that took time: sends, receives and what concerns
  // parameters, in the order of begin. Beside computations or between them.
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
  // From the first begin to the last end of the computations of the rank for
  // which that is longest: what a step takes where the next one's warm-up fills
  // this one's cool-down (arXiv 2401.10241, section 5.3).
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
