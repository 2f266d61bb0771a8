// The critical path of a timeline (CriticalPath), which is the chain of actions
// and messages that determines its makespan, and the graph of events from which
// it is computed (EventGraph).
#ifndef TESSERA_PIPELINE_SIMULATE_CRITICAL_PATH_H_
#define TESSERA_PIPELINE_SIMULATE_CRITICAL_PATH_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// The kinds of steps on a path.
enum class PathKind : uint8_t {
  kAction,           // A computation, a message (its SEND), UNSHARD...
  kSynchronisation,  // Barrier of all ranks before the optimizer.
  kOptimizer,
  kWait,  // Unexplained time, in measured timelines only.
};

// Why a step did not begin earlier: its relation to the step before it.
enum class Cause : uint8_t {
  kStart,       // The training step begins.
  kSameRank,    // The rank was busy.
  kInput,       // Its input came from another stage: the message, or the
                // computation where the message takes no time.
  kLink,        // The link was busy with the previous message.
  kPeer,        // The other end of the message was not ready.
  kParameters,  // The stage's parameters, or their stream, were not ready.
  kAllRanks,    // The slowest rank, or the barrier of all ranks.
};

struct PathStep {
  PathKind kind = PathKind::kAction;
  int32_t rank = 0;
  Action action;  // For kAction; for kWait the action that waits.
  // The part of the action that is on the path. For a message before a kLink
  // step, only the time in which it occupied the link.
  double begin = 0;
  double end = 0;
  Cause cause = Cause::kStart;  // Unused for kWait.
};

// Actions of a training step that follow each other without a gap.
//
//   for (const PathStep& step : path.steps) {
//     std::cout << step.action << " at " << step.begin << "\n";
//   }
struct Path {
  std::vector<PathStep> steps;
  // The total time by ActionKind; messages count as their SEND.
  std::array<double, kActionKinds.size()> actions = {};
  double synchronisation = 0;
  double optimizer = 0;
  double waits = 0;

  double SumOf(ActionKind kind) const {
    return actions[static_cast<size_t>(kind)];
  }
};

inline constexpr int32_t kNoEvent = -1;

// An earlier event, and why the later one waits for it.
struct EventBefore {
  int32_t event = kNoEvent;
  Cause cause = Cause::kStart;
};

// A node of the graph of everything that takes time in a timeline.
struct Event {
  PathKind kind = PathKind::kAction;
  int32_t rank = 0;
  Action action;  // For a message its SEND.
  double begin = 0;
  double end = 0;
  std::vector<EventBefore> before;  // The most specific cause first.
};

// Returns the events of a timeline. A message begins with its SEND and ends
// with its RECV; `overlap` is true if messages overlap with computations.
// Errors as for CriticalPath.
absl::StatusOr<std::vector<Event>> EventGraph(const Schedule& schedule,
                                              const Timeline& timeline,
                                              bool overlap);

struct CriticalPathOptions {
  // If false, computations wait for the rank's own messages: see Costs.
  bool overlap_communication = true;
};

// Returns the chain of actions that determines the makespan of a step.
//
//   TESSERA_ASSIGN_OR_RETURN(const Path path,
//                            CriticalPath(schedule, timeline));
//   path.SumOf(ActionKind::kForward);
//   path.waits;  // 0 for a simulated timeline
//
// Each step ends where the next begins, so that their times add up to the
// makespan. Faster actions outside the path have no effect; slower actions on
// it delay the step. If several chains have the same length, prefers the one
// that stays on a rank as long as possible.
//
// `timeline` must belong to `schedule` and have traces (SimulateOptions).
// Linear in the number of actions. InvalidArgument if its computations, or its
// messages if the schedule is lowered, differ from the schedule's.
absl::StatusOr<Path> CriticalPath(const Schedule& schedule,
                                  const Timeline& timeline,
                                  const CriticalPathOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_CRITICAL_PATH_H_
