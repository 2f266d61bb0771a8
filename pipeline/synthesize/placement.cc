#include "pipeline/synthesize/placement.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

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

bool IsBetter(const Placement& a, const Placement& b) {
  constexpr double kEqual = 1e-3;
  const double gain = b.timeline.makespan - a.timeline.makespan;
  if (gain > kEqual * b.timeline.makespan) return true;
  if (gain < -kEqual * b.timeline.makespan) return false;
  return a.peak_bytes < b.peak_bytes;
}

}  // namespace

absl::StatusOr<Placement> ChoosePlacement(const Schedule& schedule,
                                          const Costs& costs,
                                          const PlacementOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckCosts(costs, schedule.map.stages()));
  if (options.prefetches.empty() || options.reduces.empty() ||
      options.memory_limit < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.prefetches.size(), " prefetch distances, ",
        options.reduces.size(), " ways to reduce and a memory limit of ",
        options.memory_limit, "; at least 1, 1 and 0 are needed"));
  }
  ParameterOptions place;
  place.max_unsharded_bytes = options.max_unsharded_bytes;
  for (const StageCosts& stage : costs.stages) {
    place.unsharded_bytes.push_back(stage.unsharded_bytes);
  }
  std::optional<Placement> best;
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
      if (fits && (!best || IsBetter(placement, *best))) {
        best = std::move(placement);
      }
    }
  }
  if (best) return *std::move(best);
  return absl::InvalidArgumentError(absl::StrCat(
      "no placement of gathers and reductions keeps to the memory limit of ",
      options.memory_limit, " bytes; the least that one needs is ", least));
}

}  // namespace tessera::pipeline
