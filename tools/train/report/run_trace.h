// RunTrace: the last steps of a run, of all ranks on one time line, in a file
// for Perfetto.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto trace, RunTrace::Create(world, path, "rank 3", clock_offset));
//   trace->Add(activity, account);               // after each step
//   TESSERA_RETURN_IF_ERROR(trace->Write());     // rank 0 writes
#ifndef TESSERA_TOOLS_TRAIN_REPORT_RUN_TRACE_H_
#define TESSERA_TOOLS_TRAIN_REPORT_RUN_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/train/report/step_activity.h"
#include "tools/train/report/step_events.h"

namespace tessera::train {

// So many steps are kept, the last ones: enough to look at, and a file that a
// browser opens.
inline constexpr size_t kTracedSteps = 3;

class RunTrace {
 public:
  // A collective. `path` is that of the file; `name` is this rank's. The time
  // line begins now, on rank 0.
  static absl::StatusOr<std::unique_ptr<RunTrace>> Create(
      collectives::Communicator& world, std::string path, std::string_view name,
      int64_t clock_offset_ns);

  void Add(const StepActivity& activity, const StepAccount& account);
  // What happened between steps: "copy", "wait".
  void AddCheckpoint(std::string_view name, const Span& span);

  // A collective. Rank 0 writes the file, all at once; the others learn nothing
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
  struct Step {
    std::string events;
    std::string checkpoints;  // Behind it.
  };
  std::deque<Step> steps_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_RUN_TRACE_H_
