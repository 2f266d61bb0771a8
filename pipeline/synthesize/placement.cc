#include "pipeline/synthesize/placement.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/simulate/simulate.h"

namespace tessera::pipeline {
namespace {

int64_t PeakOf(const Timeline& timeline) {
  int64_t peak = 0;
  for (const RankTimeline& line : timeline.ranks) {
    peak = std::max(peak, line.peak_bytes);
  }
  return peak;
}

// The placement with the lowest peak among those at most `slack` slower than
// the fastest.
size_t BestOf(const std::vector<Placement>& placements, double slack) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const Placement& one : placements) {
    fastest = std::min(fastest, one.timeline.makespan);
  }
  const double latest = fastest * (1 + slack);
  size_t best = placements.size();
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i].timeline.makespan > latest) continue;
    if (best == placements.size() ||
        placements[i].peak_bytes < placements[best].peak_bytes) {
      best = i;
    }
  }
  return best;
}

}  // namespace

absl::StatusOr<Placement> ChoosePlacement(const Schedule& schedule,
                                          const Costs& costs,
                                          const PlacementOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckCosts(costs, schedule.map.stages()));
  if (options.prefetches.empty() || options.reduces.empty() ||
      options.memory_limit < 0 || !(options.slack >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.prefetches.size(), " prefetch distances, ",
        options.reduces.size(), " ways to reduce, a memory limit of ",
        options.memory_limit, " and a slack of ", options.slack,
        "; at least 1, 1, 0 and 0 are needed"));
  }
  ParameterOptions place;
  place.max_unsharded_bytes = options.max_unsharded_bytes;
  for (const StageCosts& stage : costs.stages) {
    place.unsharded_bytes.push_back(stage.unsharded_bytes);
  }
  std::vector<Placement> placements;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const int64_t prefetch : options.prefetches) {
    for (const ReducePlacement reduce : options.reduces) {
      place.prefetch = prefetch;
      place.reduce = reduce;
      Placement placement;
      placement.options = place;
      TESSERA_ASSIGN_OR_RETURN(placement.schedule,
                               PlaceParameters(schedule, place));
      TESSERA_ASSIGN_OR_RETURN(
          placement.timeline,
          Simulate(placement.schedule, costs, {.traces = false}));
      placement.peak_bytes = PeakOf(placement.timeline);
      least = std::min(least, placement.peak_bytes);
      const bool fits = options.memory_limit == 0 ||
                        placement.peak_bytes <= options.memory_limit;
      if (fits) placements.push_back(std::move(placement));
    }
  }
  if (!placements.empty()) {
    return std::move(placements[BestOf(placements, options.slack)]);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no placement of gathers and reductions stays within the memory limit "
      "of ",
      options.memory_limit, " bytes; at least this much is needed: ", least));
}

}  // namespace tessera::pipeline
