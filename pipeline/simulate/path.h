// Path: the actions of a training step that follow each other without a gap.
//
//   for (const PathStep& step : path.steps) {
//     std::cout << step.action << " after " << CauseName(step.cause) << "\n";
//   }
#ifndef TESSERA_PIPELINE_SIMULATE_PATH_H_
#define TESSERA_PIPELINE_SIMULATE_PATH_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "pipeline/schedule/action.h"

namespace tessera::pipeline {

// What takes a step's time.
enum class PathKind : uint8_t {
  kAction,           // A computation, a message (its SEND), UNSHARD...
  kSynchronisation,  // Of all ranks, before the optimizer.
  kOptimizer,
  kWait,  // Nothing that the schedule knows; in measured timelines.
};

// Why a step did not begin earlier: what the one before it is to it.
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
std::string_view CauseName(Cause cause);

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

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_PATH_H_
