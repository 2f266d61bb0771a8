#include "pipeline/synthesize/synthesize.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/generate/generate.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/simulate/timeline.h"
#include "pipeline/synthesize/evaluator.h"
#include "pipeline/synthesize/lower_bound.h"
#include "pipeline/synthesize/model.h"
#include "pipeline/synthesize/problem.h"
#include "pipeline/synthesize/search.h"

namespace tessera::pipeline::synthesis {
namespace {

struct Named {
  std::string_view name;
  Schedule schedule;
  Timeline timeline;
  bool fits = false;  // The memory limit.
};

bool Fits(const Timeline& timeline, int64_t limit) {
  return limit <= 0 || std::all_of(timeline.ranks.begin(), timeline.ranks.end(),
                                   [limit](const RankTimeline& rank) {
                                     return rank.peak_bytes <= limit;
                                   });
}

// The schedule of every generator that supports the problem's ranks, chunks and
// micro-batches, on the problem's map if it has one, in the order of the
// generators. Precondition: the problem is valid.
std::vector<Named> NamedSchedules(const SynthesisProblem& problem) {
  std::vector<Named> all;
  for (const Generator& generator : Generators()) {
    if (generator.chunks != 0 && generator.chunks != problem.chunks) continue;
    absl::StatusOr<Schedule> schedule = generator.generate(
        {problem.ranks, problem.chunks, problem.microbatches});
    if (!schedule.ok()) continue;  // The generator does not support the shape.
    if (problem.map && schedule->map != *problem.map) continue;
    absl::StatusOr<Timeline> timeline = Simulate(*schedule, problem.costs);
    if (!timeline.ok()) continue;
    const bool fits = Fits(*timeline, problem.memory_limit);
    all.push_back(
        {generator.name, *std::move(schedule), *std::move(timeline), fits});
  }
  return all;
}

}  // namespace
}  // namespace tessera::pipeline::synthesis

namespace tessera::pipeline {
namespace {

using synthesis::Evaluation;
using synthesis::Found;
using synthesis::MakeModel;
using synthesis::Model;
using synthesis::Named;
using synthesis::Objective;

Evaluation EvaluationOf(const Timeline& timeline) {
  return {true, timeline.longest_stage, timeline.makespan};
}

bool Has(const std::vector<StageMap>& maps, const StageMap& map) {
  return std::find(maps.begin(), maps.end(), map) != maps.end();
}

// Returns the objective with the best times known on the maps.
Objective ObjectiveOf(const std::vector<Named>& all,
                      const std::vector<StageMap>& maps, bool prefer_makespan) {
  Objective objective{.prefer_makespan = prefer_makespan};
  for (const Named& named : all) {
    if (!named.fits || !Has(maps, named.schedule.map)) continue;
    objective.known_longest_stage =
        std::min(objective.known_longest_stage, named.timeline.longest_stage);
    objective.known_makespan =
        std::min(objective.known_makespan, named.timeline.makespan);
  }
  return objective;
}

// The effort, in placements and evaluations of an action: some ten thousand
// schedules of a small pipeline, some thousand of a large one, a few of the
// largest.
int64_t EffortOf(const SynthesisProblem& problem, double share) {
  const int64_t actions =
      3 * problem.ranks * problem.chunks * problem.microbatches;
  const int64_t most = std::max<int64_t>(100'000'000, 20 * actions);
  const int64_t effort =
      std::min({40'000 * actions, 8'000'000 + 5'000 * actions, most});
  return static_cast<int64_t>(static_cast<double>(effort) * share);
}

// The result so far.
struct Best {
  Schedule schedule;
  Evaluation evaluation;
  std::string origin;
};

// Searches on each of some maps, each with its share of the effort.
class Searches {
 public:
  Searches(const SynthesisProblem& problem, const SynthesisOptions& options,
           const std::vector<StageMap>& maps)
      : problem_(problem),
        options_(options),
        all_(synthesis::NamedSchedules(problem)),
        maps_(maps),
        objective_(ObjectiveOf(all_, maps, options.prefer_makespan)) {}

  absl::StatusOr<Best> Run() {
    TESSERA_RETURN_IF_ERROR(OnMaps());
    TryWhole();
    // Maps with two copies of each stage are used only if they are better.
    std::vector<StageMap> others = BetterMaps();
    if (others.empty()) return std::move(best_);
    maps_ = std::move(others);
    objective_ = ObjectiveOf(all_, maps_, options_.prefer_makespan);
    best_ = {};
    TESSERA_RETURN_IF_ERROR(OnMaps());
    TryWhole();
    return std::move(best_);
  }

 private:
  // The maps, except those in maps_, of generators that beat the best result.
  std::vector<StageMap> BetterMaps() const {
    std::vector<StageMap> maps;
    for (const Named& named : all_) {
      const StageMap& map = named.schedule.map;
      if (!named.fits || Has(maps_, map) || Has(maps, map)) continue;
      if (!best_.evaluation.valid ||
          objective_.Preferred(EvaluationOf(named.timeline)) <
              objective_.Preferred(best_.evaluation)) {
        maps.push_back(map);
      }
    }
    return maps;
  }

  absl::Status OnMaps() {
    for (const StageMap& map : maps_) {
      TESSERA_ASSIGN_OR_RETURN(
          const double bound,
          LowerBound(map, problem_.microbatches, problem_.costs,
                     problem_.memory_limit));
      TESSERA_RETURN_IF_ERROR(On(map, bound,
                                 EffortOf(problem_, options_.effort) /
                                     static_cast<int64_t>(maps_.size())));
    }
    return absl::OkStatus();
  }

  absl::Status On(const StageMap& map, double bound, int64_t effort) {
    constexpr double kReached = 1 + 1e-9;
    const Model model = MakeModel(map, problem_.microbatches, problem_.costs,
                                  problem_.memory_limit);
    synthesis::Search search(model, objective_, bound * kReached, effort,
                             options_.seed, options_.stop);
    search.Try(synthesis::SequentialOrder(model), "sequential");
    for (const Named& named : all_) {
      if (named.schedule.map != map) continue;
      search.Try(OrderOf(model, named.schedule), named.name);
    }
    search.Run();
    if (options_.stop.stop_requested()) {
      return absl::CancelledError("the search was stopped");
    }
    const Found& found = search.best();
    if (!found.evaluation.valid) return absl::OkStatus();
    Schedule schedule =
        ScheduleOf(model, map, problem_.microbatches, found.order, "auto");
    // Simulates with everything that the model omits.
    TESSERA_ASSIGN_OR_RETURN(const Timeline timeline,
                             Simulate(schedule, problem_.costs));
    const Evaluation evaluation = EvaluationOf(timeline);
    if (objective_.Better(evaluation, best_.evaluation)) {
      best_ = {std::move(schedule), evaluation, found.origin};
    }
    return absl::OkStatus();
  }

  // The generators' unchanged schedules, with unsplit backwards.
  void TryWhole() {
    for (const Named& named : all_) {
      const Evaluation evaluation = EvaluationOf(named.timeline);
      if (!named.fits || !Has(maps_, named.schedule.map) ||
          !objective_.Better(evaluation, best_.evaluation)) {
        continue;
      }
      best_ = {named.schedule, evaluation, std::string(named.name)};
      best_.schedule.name = "auto";
    }
  }

  const SynthesisProblem& problem_;
  const SynthesisOptions& options_;
  const std::vector<Named> all_;
  std::vector<StageMap> maps_;
  Objective objective_;
  Best best_;
};

absl::Status DoesNotFit(const SynthesisProblem& problem,
                        const std::vector<StageMap>& maps) {
  synthesis::MemoryNeed least;
  for (const StageMap& map : maps) {
    const synthesis::MemoryNeed need =
        LeastMemory(MakeModel(map, problem.microbatches, problem.costs, 0));
    if (least.bytes == 0 || need.bytes < least.bytes) least = need;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no schedule was found for a memory limit of ", problem.memory_limit,
      " bytes per rank: rank ", least.rank, " needs ", least.bytes,
      " for one micro-batch at a time; give at least that, or 0 for no limit"));
}

absl::StatusOr<Synthesis> Finish(const SynthesisProblem& problem,
                                 const SynthesisOptions& options, Best best) {
  TESSERA_ASSIGN_OR_RETURN(Timeline timeline,
                           Simulate(best.schedule, problem.costs));
  TESSERA_ASSIGN_OR_RETURN(double bound,
                           LowerBound(best.schedule.map, problem.microbatches,
                                      problem.costs, problem.memory_limit));
  const double time =
      options.prefer_makespan ? timeline.makespan : timeline.longest_stage;
  return Synthesis{.schedule = std::move(best.schedule),
                   .timeline = std::move(timeline),
                   .lower_bound = bound,
                   .gap = bound > 0 ? std::max(0.0, time / bound - 1) : 0,
                   .origin = std::move(best.origin)};
}

}  // namespace

absl::StatusOr<Synthesis> Synthesize(const SynthesisProblem& problem,
                                     const SynthesisOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckProblem(problem));
  if (!std::isfinite(options.effort) || options.effort < 0 ||
      options.effort > 1e6) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an effort of ", options.effort, "; give 0 to 1e6, 1 is usual"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<StageMap> maps, MapsOf(problem));
  TESSERA_ASSIGN_OR_RETURN(Best best, Searches(problem, options, maps).Run());
  if (!best.evaluation.valid) return DoesNotFit(problem, maps);
  return Finish(problem, options, std::move(best));
}

}  // namespace tessera::pipeline
