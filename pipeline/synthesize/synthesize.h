// Synthesize: the `auto` schedule, made for given times and memory.
//
//   SynthesisProblem problem{.ranks = 8, .microbatches = 24};
//   problem.costs = Costs::Uniform(
//       8, {18.522, 18.086, 9.337, 0.601, 201216, -127488, -73728});
//   problem.memory_limit = 8 * 201216;
//   TESSERA_ASSIGN_OR_RETURN(const Synthesis best, Synthesize(problem));
//   best.timeline.BubbleRate();     // .1585
//   best.gap;                       // 0: nothing is faster
//
// Forwards, backward-inputs and backward-weights (or backwards, where a
// generator's own schedule wins); AddCommunication lowers it.
//
// How: every named generator that keeps to the limit is a candidate, as it is,
// with its backwards split and with its backward-weights placed anew. Then a
// greedy scheduler runs the pipeline under a few hundred policies
// (search/greedy.h, search/policies.h; arXiv 2401.10241, section 3.1), the best
// of which are varied rank by rank, and the best order is refined by annealing
// along its critical path (search/refine.h). It ends early where the proven
// lower bound is reached.
//
// The search takes messages to travel beside computations without waiting for
// each other. Busy links, messages in the ranks' own time and the optimizer
// count if its result is compared with the generators' schedules.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_SYNTHESIZE_H_
#define TESSERA_PIPELINE_SYNTHESIZE_SYNTHESIZE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/timeline.h"
#include "pipeline/synthesize/problem.h"

namespace tessera::pipeline {

struct SynthesisOptions {
  // Minimises the makespan instead of Timeline::longest_stage, the time of a
  // step when steps follow each other. The other one breaks ties.
  bool prefer_makespan = false;
  // Scales the time spent; 0 tries only the generators and a few policies. The
  // result depends on it but not on the machine.
  double effort = 1;
  uint64_t seed = 1;
};

struct Synthesis {
  Schedule schedule;  // Its name is "auto".
  Timeline timeline;  // As Simulate gives it.
  // No schedule on schedule.map that keeps to the limit has a longest_stage (or
  // makespan) below this: LowerBound.
  double lower_bound = 0;
  // longest_stage (or the makespan, if preferred) divided by the lower bound,
  // minus 1.
  double gap = 0;
  // The generator or search that found it: "zb_h2", "greedy, refined".
  std::string origin;
};

// A schedule that is in the preferred time no worse than any that a generator
// makes with so many chunks, on the problem's map if there is one, and that
// keeps to the limit. It is in both times no worse than the best of those on
// maps that hold every stage once (or on the problem's, or the result's own),
// if such a candidate was found. Deterministic.
//
// InvalidArgument if the problem is wrong (CheckProblem), effort is negative
// or not finite, or nothing fits the memory limit: the message has the least
// limit that would do, one micro-batch at a time, and the rank that needs it.
absl::StatusOr<Synthesis> Synthesize(const SynthesisProblem& problem,
                                     const SynthesisOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SYNTHESIZE_SYNTHESIZE_H_
