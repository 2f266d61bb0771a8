// StepEvents: what a rank did in a step, as events of a trace for
// ui.perfetto.dev.
//
//   const std::string events = StepEvents(activity, account, clock);
//
// The Trace Event Format. A rank is a process, with a thread for each kind of
// doing; what a step's events of a thread last is what StepAccount says. Passes
// are named as "2F7", by stage, kind and micro-batch. The process of a rank is
// described once, by RankEvents.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_STEP_EVENTS_H_
#define TESSERA_TOOLS_TRAIN_REPORT_STEP_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/train/report/spans.h"
#include "tools/train/report/step_activity.h"

namespace tessera::train {

// Of each step and thread, so many events; of more, the longest.
inline constexpr size_t kMostTraceEvents = 20'000;

// Whose events these are.
struct TraceClock {
  int64_t rank = 0;
  // What to add to the rank's MonotonicNanos to be on the time line of all.
  int64_t shift_ns = 0;
};

// One event a line, each but the last followed by a comma; as the others.
std::string RankEvents(const TraceClock& clock, std::string_view name);

std::string StepEvents(const StepActivity& activity, const StepAccount& account,
                       const TraceClock& clock,
                       size_t most_events = kMostTraceEvents);

// Of checkpoints: a thread of its own, beside the steps.
std::string CheckpointEvent(std::string_view name, const Span& span,
                            const TraceClock& clock);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_STEP_EVENTS_H_
