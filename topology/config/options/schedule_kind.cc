#include "topology/config/options/schedule_kind.h"

namespace tessera::topology {

ScheduleTraits TraitsOf(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::kGpipe:
    case ScheduleKind::k1F1B:
    case ScheduleKind::kZbH1:
    case ScheduleKind::kZbH2:
      return {.max_chunks = 1};
    case ScheduleKind::kInterleaved1F1B:
      return {.min_chunks = 2, .micro_batches_by_pp = true};
    case ScheduleKind::kZbV:
    case ScheduleKind::kVHalf:
    case ScheduleKind::kVMin:
      return {.min_chunks = 2, .max_chunks = 2};
    case ScheduleKind::kDualPipe:
      return {.max_chunks = 1,
              .micro_batches_multiple = 2,
              .min_micro_batches_per_rank = 2,
              .even_pp = true};
    case ScheduleKind::kDualPipeV:
      return {
          .min_chunks = 2, .max_chunks = 2, .min_micro_batches_per_rank = 2};
    case ScheduleKind::kLoopedBfs:
    case ScheduleKind::kAuto:
    case ScheduleKind::kSequential:
    case ScheduleKind::kRoundRobin:
      return {};
  }
  return {};
}

}  // namespace tessera::topology
