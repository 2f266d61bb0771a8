#include "topology/config/options/schedule_kind.h"

namespace tessera::topology {

ScheduleTraits TraitsOf(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGpipe:
    case ScheduleKind::k1F1B:
    case ScheduleKind::kZbH1:
    case ScheduleKind::kZbH2:
      return {.max_chunks = 1};
    case ScheduleKind::kZbV:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
    case ScheduleKind::kDualPipeV:
      return {.min_chunks = 2, .max_chunks = 2};
    case ScheduleKind::kDualPipe:
      return {.max_chunks = 1, .even_pp = true};
    case ScheduleKind::kInterleaved1F1B:
    case ScheduleKind::kLoopedBfs:
    case ScheduleKind::kAuto:
    case ScheduleKind::kSequential:
    case ScheduleKind::kRoundRobin:
    case ScheduleKind::kZb1p:
    case ScheduleKind::kZb2p:
      return {};
  }
  return {};
}

}  // namespace tessera::topology
