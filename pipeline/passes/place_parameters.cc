#include "pipeline/passes/place_parameters.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/action_position.h"

namespace tessera::pipeline {
namespace {

using Units = std::vector<std::span<const Action>>;

bool UnitComputes(std::span<const Action> unit) {
  return std::any_of(unit.begin(), unit.end(), [](const Action& action) {
    return Computes(action.kind);
  });
}

// Writes one rank's list.
class Placement {
 public:
  Placement(const Units& units, const std::vector<int32_t>& stages,
            const ParameterOptions& options)
      : units_(units), options_(options) {
    for (const int32_t stage : stages) uses_[stage];
    for (const auto unit : units_) {
      if (!UnitComputes(unit)) continue;
      for (const Action& action : unit) {
        Uses& uses = uses_[action.stage];
        if (NeedsParameters(action.kind) &&
            (uses.at.empty() || uses.at.back() != computations_)) {
          uses.at.push_back(computations_);
        }
        if (GivesWeightGradient(action.kind)) uses.last_weight = computations_;
      }
      ++computations_;
    }
    for (const auto& [stage, uses] : uses_) {
      if (!uses.at.empty() && IsGathered(stage)) {
        upcoming_.emplace(uses.at.front(), stage);
      }
    }
  }

  std::vector<Action> Run() {
    ReduceUnused();
    int64_t computation = 0;
    LookAheadFrom(0);
    for (const auto unit : units_) {
      list_.insert(list_.end(), unit.begin(), unit.end());
      if (!UnitComputes(unit)) continue;
      Use(unit, computation);
      Reduce(unit, computation);
      LookAheadFrom(++computation);
    }
    list_.insert(list_.end(), unused_.begin(), unused_.end());
    return std::move(list_);
  }

 private:
  struct Uses {
    std::vector<int64_t> at;  // Computations, ascending.
    size_t next = 0;
    int64_t last_weight = -1;
  };

  void Add(ActionKind kind, int32_t stage) { list_.push_back({kind, stage}); }

  int64_t BytesOf(int32_t stage) const {
    const auto& bytes = options_.unsharded_bytes;
    return bytes.empty() ? 0 : bytes[static_cast<size_t>(stage)];
  }
  bool IsGathered(int32_t stage) const {
    return options_.unsharded_bytes.empty() || BytesOf(stage) > 0;
  }

  void ReduceUnused() {
    if (options_.reduce == ReducePlacement::kNone) return;
    for (const auto& [stage, uses] : uses_) {
      if (uses.last_weight >= 0) continue;
      unused_.push_back({ActionKind::kReduceGradient, stage});
    }
  }

  // Advances the stages of the unit to their next use.
  void Use(std::span<const Action> unit, int64_t computation) {
    for (const Action& action : unit) {
      Uses& uses = uses_[action.stage];
      if (upcoming_.erase({computation, action.stage}) == 0) continue;
      ++uses.next;
      if (uses.next < uses.at.size()) {
        upcoming_.emplace(uses.at[uses.next], action.stage);
      }
    }
  }

  void Reduce(std::span<const Action> unit, int64_t computation) {
    for (const Action& action : unit) {
      if (!GivesWeightGradient(action.kind)) continue;
      const bool is_last = uses_[action.stage].last_weight == computation;
      if (options_.reduce == ReducePlacement::kEachMicroBatch ||
          (options_.reduce == ReducePlacement::kLastMicroBatch && is_last)) {
        Add(ActionKind::kReduceGradient, action.stage);
      }
    }
  }

  // Before `computation`, releases stages that are not used soon and gathers
  // those that are.
  void LookAheadFrom(int64_t computation) {
    std::vector<int32_t> near;
    int64_t bytes = 0;
    for (const auto& [use, stage] : upcoming_) {
      bytes += BytesOf(stage);
      const bool full =
          (options_.max_unsharded > 0 &&
           static_cast<int64_t>(near.size()) == options_.max_unsharded) ||
          (options_.max_unsharded_bytes > 0 &&
           bytes > options_.max_unsharded_bytes);
      if (full || use - computation > options_.prefetch) break;
      near.push_back(stage);
    }
    for (auto stage = gathered_.begin(); stage != gathered_.end();) {
      if (std::find(near.begin(), near.end(), *stage) != near.end()) {
        ++stage;
        continue;
      }
      Add(ActionKind::kReshard, *stage);
      stage = gathered_.erase(stage);
    }
    for (const int32_t stage : near) {
      if (gathered_.insert(stage).second) Add(ActionKind::kUnshard, stage);
    }
  }

  const Units& units_;
  const ParameterOptions& options_;
  std::map<int32_t, Uses> uses_;  // By stage.
  int64_t computations_ = 0;
  std::set<std::pair<int64_t, int32_t>> upcoming_;  // Next use and stage.
  std::set<int32_t> gathered_;
  std::vector<Action> list_;
  std::vector<Action> unused_;
};

absl::Status CheckUnits(const Schedule& schedule, size_t rank,
                        const Units& units, const ParameterOptions& options) {
  const auto& actions = schedule.ranks[rank];
  for (const auto unit : units) {
    for (const Action& action : unit) {
      const ActionPosition place{
          static_cast<int32_t>(rank),
          static_cast<int32_t>(&action - actions.data())};
      if (action.stage < 0 || action.stage >= schedule.map.stages()) {
        return absl::InvalidArgumentError(absl::StrCat(
            Describe(schedule, place), ": the schedule has stages 0 to ",
            schedule.map.stages() - 1));
      }
      if (!HasMicroBatch(action.kind)) {
        return absl::InvalidArgumentError(
            absl::StrCat(Describe(schedule, place),
                         ": the schedule's parameters are placed already"));
      }
      const bool is_second =
          &action != &unit[0] && action.stage != unit[0].stage;
      if (options.max_unsharded == 1 && is_second) {
        return absl::InvalidArgumentError(absl::StrCat(
            Describe(schedule, place), " runs together with ",
            unit[0].ToString(), ", of another stage: max_unsharded is 1, and ",
            "must be at least 2"));
      }
      if (options.max_unsharded_bytes == 0) continue;
      const auto bytes_of = [&](const Action& of) {
        return options.unsharded_bytes[static_cast<size_t>(of.stage)];
      };
      const int64_t bytes =
          bytes_of(action) + (is_second ? bytes_of(unit[0]) : 0);
      if (bytes <= options.max_unsharded_bytes) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          Describe(schedule, place), ": stage ", action.stage,
          is_second ? absl::StrCat(" beside stage ", unit[0].stage) : "",
          " needs ", bytes, " bytes of gathered parameters; ",
          "max_unsharded_bytes is ", options.max_unsharded_bytes,
          ", and must be at least that"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const Schedule& schedule,
                          const ParameterOptions& options) {
  if (options.prefetch < 0 || options.max_unsharded < 0 ||
      options.max_unsharded_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefetch ", options.prefetch, ", max_unsharded ",
                     options.max_unsharded, " and max_unsharded_bytes ",
                     options.max_unsharded_bytes, "; each is at least 0"));
  }
  const auto sizes = static_cast<int64_t>(options.unsharded_bytes.size());
  if (sizes != 0 && sizes != schedule.map.stages()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unsharded_bytes has ", sizes, " entries; the schedule has ",
        schedule.map.stages(), " stages"));
  }
  if (sizes == 0 && options.max_unsharded_bytes > 0) {
    return absl::InvalidArgumentError(
        "max_unsharded_bytes needs unsharded_bytes, the sizes of all stages");
  }
  for (const int64_t bytes : options.unsharded_bytes) {
    if (bytes >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("unsharded_bytes has ", bytes, "; each is at least 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Schedule> PlaceParameters(const Schedule& schedule,
                                         const ParameterOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckOptions(schedule, options));
  if (static_cast<int64_t>(schedule.ranks.size()) != schedule.map.ranks()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the schedule has ", schedule.ranks.size(), " lists of actions; its ",
        "map has ", schedule.map.ranks(), " ranks"));
  }
  std::vector<std::vector<int32_t>> stages(schedule.ranks.size());
  for (int32_t stage = 0; stage < schedule.map.stages(); ++stage) {
    const int32_t front = schedule.map.RankOf(stage);
    const int32_t back = schedule.map.RankFromBack(stage);
    stages[static_cast<size_t>(front)].push_back(stage);
    if (back != front) stages[static_cast<size_t>(back)].push_back(stage);
  }
  Schedule placed = schedule;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    TESSERA_ASSIGN_OR_RETURN(const Units units, UnitsOf(schedule, rank));
    TESSERA_RETURN_IF_ERROR(CheckUnits(schedule, rank, units, options));
    placed.ranks[rank] = Placement(units, stages[rank], options).Run();
  }
  return placed;
}

}  // namespace tessera::pipeline
