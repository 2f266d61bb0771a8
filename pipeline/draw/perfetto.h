// DrawPerfetto: writes timelines as a trace for ui.perfetto.dev or
// chrome://tracing.
#ifndef TESSERA_PIPELINE_DRAW_PERFETTO_H_
#define TESSERA_PIPELINE_DRAW_PERFETTO_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/draw/exhibit.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// Assigns each action, in order of begin, the first lane that is free at that
// time. Actions of a lane never overlap, and the number of lanes is the maximum
// number of concurrent actions.
//
//   LanesOf(rank.communications);    // {0, 1, 0}: the first two overlap
std::vector<size_t> LanesOf(std::span<const TimedAction> actions);

// Writes timelines as a trace.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const std::string trace,
//       DrawPerfetto({{{"predicted", a}, {"measured", b}}}));
//
// The trace is one JSON object in the Trace Event Format, with an event per
// line. Each exhibit is a process. It has a thread for each rank's
// computations, more threads for the rank's other actions, as many as run
// concurrently, and a counter of the bytes or micro-batches that the rank
// holds. An event is named "2F7"; its category is the kind ("F", "SEND_F"), its
// arguments are stage and micro-batch. Times are microseconds, to the
// nanosecond.
//
// InvalidArgument as for CheckExhibits.
absl::StatusOr<std::string> DrawPerfetto(std::span<const Exhibit> exhibits,
                                         const TimeUnit& unit = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_PERFETTO_H_
