// CriticalPath: the chain of actions and messages that determines a schedule's
// time, from the graph of its events.
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

// Path: the actions of a training step that follow each other without a gap.
//
//   for (const PathStep& step : path.steps) {
//     std::cout << step.action << " at " << step.begin << "\n";
//   }

// The kinds of steps on a path.
enum class PathKind : uint8_t {
  kAction,           // A computation, a message (its SEND), UNSHARD...
  kSynchronisation,  // Of all ranks, before the optimizer.
  kOptimizer,
  kWait,  // Nothing that the schedule knows; in measured timelines.
};

// Why a step did not begin earlier: its relation to the step before it.
enum class Cause : uint8_t {
  kStart,       // It begins with the training step.
  kSameRank,    // The rank was not free before.
  kInput,       // What it needs came from another stage: the message, or the
                // computation where the message takes no time.
  kLink,        // The link was taken by the message before.
  kPeer,        // The other end of the message was not there before.
  kParameters,  // The stage's parameters, or their stream, were not there.
  kAllRanks,    // The slowest rank, or what all ranks do together.
};

struct PathStep {
  PathKind kind = PathKind::kAction;
  int32_t rank = 0;
  Action action;  // Of kAction; of kWait the one that waits.
  // The part of it that is on the path: of a message after which the link was
  // free, as long as that was taken.
  double begin = 0;
  double end = 0;
  Cause cause = Cause::kStart;  // Without meaning for kWait.
};

struct Path {
  std::vector<PathStep> steps;
  // By ActionKind, a message as its SEND.
  std::array<double, kActionKinds.size()> actions = {};
  double synchronisation = 0;
  double optimizer = 0;
  double waits = 0;

  double SumOf(ActionKind kind) const {
    return actions[static_cast<size_t>(kind)];
  }
};

// The graph of everything that takes time in a timeline.

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
  std::vector<EventBefore> before;  // The most specific cause first.
};

// Errors as CriticalPath. A message begins with its SEND and ends with its
// RECV; `overlap`: it overlaps with computations.
absl::StatusOr<std::vector<Event>> EventGraph(const Schedule& schedule,
                                              const Timeline& timeline,
                                              bool overlap);

struct CriticalPathOptions {
  // See Costs: if false, computations wait for the rank's own messages.
  bool overlap_communication = true;
};

// The chain of actions that determines a step's time.
//
//   TESSERA_ASSIGN_OR_RETURN(const Path path,
//                            CriticalPath(schedule, timeline));
//   path.SumOf(ActionKind::kForward);
//   path.waits;  // 0 for a simulated timeline
//
// Each step ends where the next begins, so that they add up to the makespan.
// Faster actions outside the path have no effect; slower actions on it delay
// the step. Of several chains of equal length this is the one that stays on a
// rank as long as possible.
//
// `timeline` is of `schedule`, with traces (SimulateOptions). Linear in the
// number of actions. InvalidArgument if its computations, or in a lowered
// schedule its messages, are not those of the schedule.
absl::StatusOr<Path> CriticalPath(const Schedule& schedule,
                                  const Timeline& timeline,
                                  const CriticalPathOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_CRITICAL_PATH_H_
