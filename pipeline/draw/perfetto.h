// Lanes: places actions that overlap in time on different lanes.
//
//   LanesOf(rank.communications);    // {0, 1, 0}: the second beside the first
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

// For each action, in order of begin, the first lane that is free then: actions
// of a lane never overlap, and the number of lanes is the maximum number of
// concurrent actions.
std::vector<size_t> LanesOf(std::span<const TimedAction> actions);

// DrawPerfetto: timelines as a trace for ui.perfetto.dev or chrome://tracing.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const std::string trace,
//       DrawPerfetto({{{"predicted", a}, {"measured", b}}}));
//
// The Trace Event Format, as JSON: a process for each exhibit, in it a thread
// for each rank's computations and as many more as its other actions need side
// by side, and a counter for what each rank holds. An event is named "2F7"; its
// category is the kind ("F", "SEND_F"), its arguments are stage and
// micro-batch. Times are microseconds, to the nanosecond.
//
// One JSON object, an event a line. InvalidArgument as CheckExhibits.
absl::StatusOr<std::string> DrawPerfetto(std::span<const Exhibit> exhibits,
                                         const TimeUnit& unit = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_PERFETTO_H_
