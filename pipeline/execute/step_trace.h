// StepTrace: records the begin and end of every action of this rank in a step.
// Times are taken on the host: on a device they are the times of enqueueing.
//
//   StepTrace trace(/*enabled=*/true);
//   trace.Begin();
//   const double begin = trace.Now();
//   stage.Forward(...);
//   trace.Computed(action, begin);
//   trace.Finish();                      // a RankTimeline
#ifndef TESSERA_PIPELINE_EXECUTE_STEP_TRACE_H_
#define TESSERA_PIPELINE_EXECUTE_STEP_TRACE_H_

#include <cstdint>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

class StepTrace {
 public:
  // If `enabled` is false, records peaks but no times.
  explicit StepTrace(bool enabled) : enabled_(enabled) {}

  // Resets the trace: the clock starts at 0 now, and nothing is held.
  void Begin();

  // Seconds since Begin; 0 if not enabled.
  double Now() const;

  // Records a computation that began at `begin` and ends now.
  void Computed(const Action& action, double begin);
  void Communicated(const Action& action, double begin);

  // The rank holds this many more bytes, or micro-batches, from now on.
  void HoldBytes(int64_t more);
  void HoldActivations(int64_t more);

  // For a replay: takes over the peaks of the recorded step.
  void HoldAsIn(const RankTimeline& recorded);

  // Sorts communications by their begin.
  void Finish();

  const RankTimeline& timeline() const { return timeline_; }

 private:
  const bool enabled_;
  int64_t origin_ns_ = 0;
  int64_t bytes_ = 0;
  int64_t activations_ = 0;
  RankTimeline timeline_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_EXECUTE_STEP_TRACE_H_
