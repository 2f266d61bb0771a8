// RunTrace: the last steps of a run, of all ranks on one time line, in a file
// for ui.perfetto.dev (the Trace Event Format).
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto trace, RunTrace::Create(world, path, "rank 3", clock_offset));
//   trace->Add(activity, account);            // after each step
//   TESSERA_RETURN_IF_ERROR(trace->Write());  // rank 0 writes
//
// A rank is a process with one thread per Doing, whose events in a step have
// the lengths of StepAccount. Passes are named by stage, kind and micro-batch:
// "2F7".
#ifndef TESSERA_TOOLS_TRAIN_REPORT_RUN_TRACE_H_
#define TESSERA_TOOLS_TRAIN_REPORT_RUN_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/train/report/spans.h"
#include "tools/train/report/step_activity.h"

namespace tessera::train {

struct TraceClock {
  int64_t rank = 0;
  // The offset to add to the rank's MonotonicNanos to get the common time line.
  int64_t shift_ns = 0;
};

// The number of last steps that are kept, so that a browser can open the file.
inline constexpr size_t kTracedSteps = 3;

class RunTrace {
 public:
  // A collective. `name` is this rank's. The time line begins now, on rank 0.
  static absl::StatusOr<std::unique_ptr<RunTrace>> Create(
      collectives::Communicator& world, std::string path, std::string_view name,
      int64_t clock_offset_ns);

  void Add(const StepActivity& activity, const StepAccount& account);
  // Adds an event between steps: "copy", "wait".
  void AddCheckpoint(std::string_view name, const Span& span);

  // A collective. Rank 0 writes the file at once; the other ranks do not learn
  // of its errors.
  absl::Status Write();

 private:
  RunTrace(collectives::Communicator& world, std::string path, std::string name,
           const TraceClock& clock)
      : world_(world),
        path_(std::move(path)),
        name_(std::move(name)),
        clock_(clock) {}

  std::string OwnEvents() const;

  collectives::Communicator& world_;
  const std::string path_;
  const std::string name_;
  const TraceClock clock_;
  std::deque<std::string> steps_;  // Events, with checkpoints after the step.
};

// The parts of the file. Each returns events one per line, all but the last
// followed by a comma.

// The names of a rank's process and threads.
std::string RankEvents(const TraceClock& clock, std::string_view name);

// The maximum number of events of a thread in a step. With more, the longest
// are kept.
inline constexpr size_t kMostTraceEvents = 20'000;
std::string StepEvents(const StepActivity& activity, const StepAccount& account,
                       const TraceClock& clock,
                       size_t most_events = kMostTraceEvents);

// An event of the thread for checkpoints.
std::string CheckpointEvent(std::string_view name, const Span& span,
                            const TraceClock& clock);

struct SliceLabel {
  std::string name = {};
  std::string category = {};
  std::string arguments = {};  // JSON members: "\"stage\":2"; may be empty.
};

struct Slice {
  Span span = {};
  SliceLabel label = {};
};

// Cuts `spans` where their label changes: each moment once, in order, with the
// label that covers it, or `other` if none does. If labels overlap, the one
// that begins first counts for as long as it lasts.
std::vector<Slice> Slices(const Spans& spans, std::vector<Slice> labels,
                          const SliceLabel& other);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_RUN_TRACE_H_
