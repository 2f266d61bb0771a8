#include "pipeline/synthesize/named.h"

#include <algorithm>
#include <utility>

#include "pipeline/generate/generate.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline::synthesis {
namespace {

bool Fits(const Timeline& timeline, int64_t limit) {
  return limit <= 0 || std::all_of(timeline.ranks.begin(), timeline.ranks.end(),
                                   [limit](const RankTimeline& rank) {
                                     return rank.peak_bytes <= limit;
                                   });
}

}  // namespace

std::vector<Named> NamedSchedules(const SynthesisProblem& problem) {
  std::vector<Named> all;
  for (const Generator& generator : Generators()) {
    if (generator.chunks != 0 && generator.chunks != problem.chunks) continue;
    absl::StatusOr<Schedule> schedule = generator.generate(
        {problem.ranks, problem.chunks, problem.microbatches});
    if (!schedule.ok()) continue;  // Not for this shape.
    if (problem.map && schedule->map != *problem.map) continue;
    absl::StatusOr<Timeline> timeline = Simulate(*schedule, problem.costs);
    if (!timeline.ok()) continue;
    const bool fits = Fits(*timeline, problem.memory_limit);
    all.push_back(
        {generator.name, *std::move(schedule), *std::move(timeline), fits});
  }
  return all;
}

}  // namespace tessera::pipeline::synthesis
