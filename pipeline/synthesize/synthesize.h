// Synthesize: creates the `auto` schedule, optimised for given times and
// memory.
//
//   SynthesisProblem problem{.ranks = 8, .microbatches = 24};
//   problem.costs = Costs::Uniform(
//       8, {18.522, 18.086, 9.337, 0.601, 201216, -127488, -73728});
//   problem.memory_limit = 8 * 201216;
//   TESSERA_ASSIGN_OR_RETURN(const Synthesis best, Synthesize(problem));
//   best.timeline.BubbleRate();     // .1585
//   best.gap;                       // 0: nothing is faster
//
// The schedule has forwards, backward-inputs and backward-weights (or
// backwards, if a generator's own schedule wins); AddCommunication lowers it.
//
// Method. The schedule of every named generator that is within the limit is a
// candidate: unchanged, with split backwards, and with rearranged
// backward-weights. Then a greedy scheduler runs the pipeline with a few
// hundred policies (arXiv 2401.10241, section 3.1), the best policies are
// varied rank by rank, and the best order is refined by annealing along its
// critical path. The search stops when it reaches the proven lower bound.
//
// The search assumes that messages overlap with computation and do not wait for
// each other. Busy links, synchronous messages and the optimizer matter only
// when the result is compared with the generators' schedules.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_SYNTHESIZE_H_
#define TESSERA_PIPELINE_SYNTHESIZE_SYNTHESIZE_H_

#include <cstdint>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/timeline.h"
#include "pipeline/synthesize/problem.h"

namespace tessera::pipeline {

struct SynthesisOptions {
  // Minimises the makespan instead of Timeline::longest_stage, the time of a
  // step when steps follow each other. The other time breaks ties.
  bool prefer_makespan = false;
  // Scales the time spent; 0 tries only the generators and a few policies. The
  // result depends on it but not on the machine.
  double effort = 1;
  uint64_t seed = 1;
  // A request to stop, from another thread, ends the search with Cancelled.
  std::stop_token stop = {};
};

struct Synthesis {
  Schedule schedule;  // Its name is "auto".
  Timeline timeline;  // From Simulate.
  // The result of LowerBound: no schedule on schedule.map within the limit has
  // a smaller longest_stage (or makespan).
  double lower_bound = 0;
  // longest_stage (or the makespan, if preferred) divided by the lower bound,
  // minus 1.
  double gap = 0;
  // The generator or search that found it: "zb_h2", "greedy, refined".
  std::string origin;
};

// Returns a schedule within the limit whose preferred time is no worse than
// that of any generator's schedule with as many chunks, on the problem's map if
// given. If such a candidate was found, both times are no worse than those of
// the best candidate on maps with one copy of every stage (or on the problem's
// map, or the result's own). Deterministic.
//
// InvalidArgument if the problem is invalid (CheckProblem), effort is negative
// or not finite, or no schedule fits the memory limit: the message has the
// smallest sufficient limit (one micro-batch at a time) and the rank that needs
// it.
absl::StatusOr<Synthesis> Synthesize(const SynthesisProblem& problem,
                                     const SynthesisOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SYNTHESIZE_SYNTHESIZE_H_
