#include "pipeline/proof/parameters.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/place.h"

namespace tessera::pipeline {
namespace {

constexpr int32_t kNever = -1;

struct StageState {
  bool gathers = false;  // Ever, in this list.
  bool gathered = false;
  int32_t last_change = kNever;
  int32_t reduced = kNever;
};

class RankParameters {
 public:
  RankParameters(const Schedule& schedule, int32_t rank)
      : schedule_(schedule), rank_(rank) {
    for (const Action& action : List()) {
      if (action.kind == ActionKind::kUnshard ||
          action.kind == ActionKind::kReshard) {
        states_[action.stage].gathers = true;
      }
    }
  }

  absl::StatusOr<int64_t> PeakGathered() {
    const auto actions = static_cast<int32_t>(List().size());
    for (int32_t position = 0; position < actions; ++position) {
      TESSERA_RETURN_IF_ERROR(Do(position));
    }
    for (const auto& [stage, state] : states_) {
      if (!state.gathered) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          At(state.last_change), " is followed by no ", stage, "RESHARD"));
    }
    return peak_;
  }

  bool Reduces(int32_t stage) const {
    const auto state = states_.find(stage);
    return state != states_.end() && state->second.reduced != kNever;
  }

 private:
  const std::vector<Action>& List() const {
    return schedule_.ranks[static_cast<size_t>(rank_)];
  }
  std::string At(int32_t position) const {
    return Describe(schedule_, {rank_, position});
  }

  absl::Status Do(int32_t position) {
    const Action& action = List()[static_cast<size_t>(position)];
    if (Communicates(action.kind)) return absl::OkStatus();
    StageState& state = states_[action.stage];
    if (Computes(action.kind)) return Compute(action, position, state);
    if (action.kind == ActionKind::kReduceGradient) {
      if (state.reduced == kNever) {
        state.reduced = position;
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError(
          absl::StrCat(At(position), " reduces again what ", At(state.reduced),
                       " has reduced"));
    }
    return Change(action.kind == ActionKind::kUnshard, position, state);
  }

  absl::Status Compute(const Action& action, int32_t position,
                       const StageState& state) const {
    if (state.gathers && !state.gathered) {
      return absl::InvalidArgumentError(absl::StrCat(
          At(position), " waits for the stage's parameters, which ",
          state.last_change == kNever
              ? "no action before it gathers"
              : absl::StrCat(At(state.last_change), " has given up")));
    }
    if (state.reduced != kNever && GivesWeightGradient(action.kind)) {
      return absl::InvalidArgumentError(
          absl::StrCat(At(state.reduced), " reduces the stage's gradients ",
                       "before ", At(position), " has given its share"));
    }
    return absl::OkStatus();
  }

  absl::Status Change(bool gather, int32_t position, StageState& state) {
    if (state.gathered == gather) {
      return absl::InvalidArgumentError(
          absl::StrCat(At(position),
                       gather ? ": the stage is gathered already, by "
                              : ": the stage is not gathered",
                       gather ? At(state.last_change) : ""));
    }
    state.gathered = gather;
    state.last_change = position;
    gathered_ += gather ? 1 : -1;
    peak_ = std::max(peak_, gathered_);
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  const int32_t rank_;
  absl::flat_hash_map<int32_t, StageState> states_;
  int64_t gathered_ = 0;
  int64_t peak_ = 0;
};

absl::Status CheckReduced(const Schedule& schedule,
                          const std::vector<RankParameters>& ranks) {
  for (int32_t stage = 0; stage < schedule.map.stages(); ++stage) {
    for (const int32_t rank :
         {schedule.map.RankOf(stage), schedule.map.RankFromBack(stage)}) {
      if (ranks[static_cast<size_t>(rank)].Reduces(stage)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", rank, " never does ", stage, "REDUCE_GRAD; either every ",
          "stage's gradients are reduced by the schedule, or none"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> CheckParameters(const Schedule& schedule) {
  std::vector<RankParameters> ranks;
  std::vector<int64_t> peaks;
  bool any_reduced = false;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    ranks.emplace_back(schedule, static_cast<int32_t>(rank));
    TESSERA_ASSIGN_OR_RETURN(const int64_t peak, ranks.back().PeakGathered());
    peaks.push_back(peak);
    for (const Action& action : schedule.ranks[rank]) {
      any_reduced |= action.kind == ActionKind::kReduceGradient;
    }
  }
  if (any_reduced) TESSERA_RETURN_IF_ERROR(CheckReduced(schedule, ranks));
  return peaks;
}

}  // namespace tessera::pipeline
