// EventGraph: everything that takes time in a timeline, and what each waits
// for.
#ifndef TESSERA_PIPELINE_SIMULATE_EVENT_GRAPH_H_
#define TESSERA_PIPELINE_SIMULATE_EVENT_GRAPH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/path.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

inline constexpr int32_t kNoEvent = -1;

// An earlier event, and why it is waited for.
struct EventBefore {
  int32_t event = kNoEvent;
  Cause cause = Cause::kStart;
};

struct Event {
  PathKind kind = PathKind::kAction;
  int32_t rank = 0;
  Action action;  // Of a message its SEND.
  double begin = 0;
  double end = 0;
  std::vector<EventBefore> before;  // The most telling cause first.
};

// Errors as CriticalPath. A message begins with its SEND and ends with its
// RECV; `overlap` tells whether it travels beside the computations.
absl::StatusOr<std::vector<Event>> EventGraph(const Schedule& schedule,
                                              const Timeline& timeline,
                                              bool overlap);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_EVENT_GRAPH_H_
