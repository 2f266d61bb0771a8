// ScheduleKind: the pipeline schedules by name, and what each asks of a job.
//
//   ParseEnum<ScheduleKind>("zb_v");                 // ScheduleKind::kZbV
//   TraitsOf(ScheduleKind::kZbV).max_chunks;         // 2
//
// The list of schedules is kept here alone: whoever generates, proves or plans
// them takes names and demands from this table.
#ifndef TESSERA_TOPOLOGY_CONFIG_OPTIONS_SCHEDULE_KIND_H_
#define TESSERA_TOPOLOGY_CONFIG_OPTIONS_SCHEDULE_KIND_H_

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "topology/config/options/named_enum.h"

namespace tessera::topology {

enum class ScheduleKind {
  kGpipe,            // all forward, then all backward; arXiv 1811.06965
  k1F1B,             // one forward, one backward; arXiv 2006.09503
  kInterleaved1F1B,  // 1F1B over several chunks a rank; arXiv 2104.04473
  kLoopedBfs,        // all micro-batches of a chunk, then the next; 2211.05953
  kZbH1,             // backward split in two, 1F1B's memory; arXiv 2401.10241
  kZbH2,             // the same with more memory and hardly a bubble
  kZbV,              // two chunks a rank in a V, no bubble; arXiv 2405.15362
  kVHalf,            // in a V, half of 1F1B's activations; 2405.15362
  kVMin,             // in a V, the least activations; 2405.15362
  kDualPipe,         // micro-batches from both ends; arXiv 2412.19437
  kDualPipeV,        // DualPipe cut in half, one copy of each parameter
  kAuto,             // to be chosen by a planner
  kSequential,       // one micro-batch through all stages at a time
  kRoundRobin,       // chunks in turn, all forward, then all backward
  kZb1p,             // kAuto within 1F1B's memory; arXiv 2401.10241
  kZb2p,             // kAuto within twice of that
};

template <>
struct EnumNames<ScheduleKind> {
  static constexpr std::string_view kWhat = "schedule";
  static constexpr auto kTable = std::to_array<NamedValue<ScheduleKind>>({
      {"gpipe", ScheduleKind::kGpipe},
      {"1f1b", ScheduleKind::k1F1B},
      {"interleaved_1f1b", ScheduleKind::kInterleaved1F1B},
      {"looped_bfs", ScheduleKind::kLoopedBfs},
      {"zb_h1", ScheduleKind::kZbH1},
      {"zb_h2", ScheduleKind::kZbH2},
      {"zb_v", ScheduleKind::kZbV},
      {"v_half", ScheduleKind::kVHalf},
      {"v_min", ScheduleKind::kVMin},
      {"dualpipe", ScheduleKind::kDualPipe},
      {"dualpipev", ScheduleKind::kDualPipeV},
      {"auto", ScheduleKind::kAuto},
      {"sequential", ScheduleKind::kSequential},
      {"round_robin", ScheduleKind::kRoundRobin},
      {"zb_1p", ScheduleKind::kZb1p},
      {"zb_2p", ScheduleKind::kZb2p},
  });
};

// What a schedule asks of the sizes of a job with `pp` ranks in a pipeline, as
// the generators (pipeline/generate) take them: any number of micro-batches
// from 1 on, whole rounds of pp or not.
struct ScheduleTraits {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Virtual stages a rank holds. DualPipe has one: its second is a copy of
  // another rank's.
  int64_t min_chunks = 1;
  int64_t max_chunks = kNoLimit;
  // pp is even, since ranks work in pairs.
  bool even_pp = false;
};

// The demands of a schedule; those of a value outside the enumeration are
// none.
ScheduleTraits TraitsOf(ScheduleKind kind);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_OPTIONS_SCHEDULE_KIND_H_
