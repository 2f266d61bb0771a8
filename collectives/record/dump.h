// What a flight recorder holds, as JSON for people and programs and as a trace
// for Perfetto (ui.perfetto.dev) or chrome://tracing.
#ifndef TESSERA_COLLECTIVES_RECORD_DUMP_H_
#define TESSERA_COLLECTIVES_RECORD_DUMP_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/record/flight_recorder.h"

namespace tessera::collectives {

// Whose records these are.
struct RecordedGroup {
  std::string name;
  std::string engine;
  int64_t rank = 0;
  int64_t ranks = 1;
  int64_t world_rank = 0;
};

// One JSON object: `group`, `engine`, `rank`, `ranks`, `pid`, `error` (code and
// message, null where there is none), `operations` (oldest first: `sequence`,
// `operation`, `algorithm`, `dtype`, `count`, `bytes`, `peer`, `begin_ns`,
// `end_ns` (null while it runs), `status`) and `statistics`.
std::string RecordsToJson(const RecordedGroup& group,
                          std::span<const OperationRecord> records,
                          const StatisticsTable& statistics,
                          const absl::Status& error);

// Trace events in the Trace Event Format, without the surrounding list: one a
// line, each but the last followed by a comma. The process is the rank in the
// world, the thread the group; times are CLOCK_MONOTONIC in microseconds, so
// that ranks of one host line up.
std::string RecordsToTraceEvents(const RecordedGroup& group,
                                 std::span<const OperationRecord> records);

// {"traceEvents": [...]} around the events of any number of groups and ranks.
std::string TraceOf(std::span<const std::string> events);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_RECORD_DUMP_H_
