#include "pipeline/proof/coverage.h"

#include <array>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/action_position.h"

namespace tessera::pipeline {

namespace {

// Checks that all ranks have lists, and that there are enough computations to
// justify the memory of a table of all stages and micro-batches.
absl::Status CheckSizes(const Schedule& schedule) {
  const auto lists = static_cast<int64_t>(schedule.ranks.size());
  if (lists != schedule.map.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the schedule has ", lists, " lists of actions; its map ",
                     "has ", schedule.map.ranks(), " ranks"));
  }
  if (schedule.microbatches < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule of ", schedule.microbatches,
                     " micro-batches; at least 1 is allowed"));
  }
  int64_t computations = 0;
  for (const auto& actions : schedule.ranks) {
    if (actions.size() > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a list of ", actions.size(), " actions; at most 2^31 - 1"));
    }
    for (const Action& action : actions) {
      if (Computes(action.kind)) ++computations;
    }
  }
  const int64_t passes = schedule.map.stages() * schedule.microbatches;
  if (computations >= passes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the schedule has ", computations, " computations; ",
      schedule.microbatches, " micro-batches pass ", schedule.map.stages(),
      " stages with at least ", 2 * passes));
}

absl::Status CheckPlacement(const Schedule& schedule, ActionPosition place) {
  const Action& action = ActionAt(schedule, place);
  if (action.stage < 0 || action.stage >= schedule.map.stages()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(schedule, place), ": the schedule has stages 0 ",
                     "to ", schedule.map.stages() - 1));
  }
  if (!HasMicroBatch(action.kind)) {
    if (action.microbatch != kNoMicroBatch) {
      return absl::InvalidArgumentError(
          absl::StrCat(Describe(schedule, place),
                       " takes no micro-batch, but names ", action.microbatch));
    }
    const int32_t owner = schedule.map.RankOf(action.stage);
    if (place.rank == owner ||
        place.rank == schedule.map.RankFromBack(action.stage)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(schedule, place), ": the stage is rank ", owner, "'s"));
  }
  if (action.microbatch < 0 || action.microbatch >= schedule.microbatches) {
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(schedule, place), ": the schedule has micro-batches 0 to ",
        schedule.microbatches - 1));
  }
  const int32_t owner = schedule.RankOf(action.stage, action.microbatch);
  if (place.rank == owner) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Describe(schedule, place), ": the action is rank ", owner, "'s"));
}

// The kinds that, together with `kind`, would repeat a backward.
std::array<ActionKind, 3> Rivals(ActionKind kind) {
  switch (kind) {
    case ActionKind::kBackward:
      return {kind, ActionKind::kBackwardInput, ActionKind::kBackwardWeight};
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      return {kind, ActionKind::kBackward, ActionKind::kBackward};
    default:
      return {kind, kind, kind};
  }
}

absl::Status NeverDone(const Schedule& schedule, ActionKind kind, int32_t stage,
                       int32_t microbatch) {
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", schedule.RankOf(stage, microbatch), " never executes ",
      Action{kind, stage, microbatch}.ToString(), " in its ",
      schedule.ranks[static_cast<size_t>(schedule.RankOf(stage, microbatch))]
          .size(),
      " actions"));
}

}  // namespace

Coverage::Coverage(const Schedule& schedule)
    : microbatches_(schedule.microbatches) {
  Positions none;
  none.fill(kAbsent);
  positions_.resize(static_cast<size_t>(schedule.map.stages()) *
                        static_cast<size_t>(microbatches_),
                    none);
}

absl::Status Coverage::Enter(const Schedule& schedule, int32_t rank,
                             int32_t position) {
  const ActionPosition place{rank, position};
  TESSERA_RETURN_IF_ERROR(CheckPlacement(schedule, place));
  const Action& action = ActionAt(schedule, place);
  if (!HasMicroBatch(action.kind)) return absl::OkStatus();
  Positions& positions = positions_[IndexOf(action.stage, action.microbatch)];
  for (const ActionKind rival : Rivals(action.kind)) {
    const int32_t before = positions[static_cast<size_t>(rival)];
    if (before == kAbsent) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(schedule, place), " repeats ",
                     Describe(schedule, {rank, before})));
  }
  positions[static_cast<size_t>(action.kind)] = position;
  return absl::OkStatus();
}

absl::Status Coverage::CheckComplete(const Schedule& schedule) const {
  for (int32_t stage = 0; stage < schedule.map.stages(); ++stage) {
    for (int32_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
      const auto has = [&](ActionKind kind) {
        return PositionOf(kind, stage, microbatch) != kAbsent;
      };
      if (!has(ActionKind::kForward)) {
        return NeverDone(schedule, ActionKind::kForward, stage, microbatch);
      }
      if (has(ActionKind::kBackward)) continue;
      const bool input = has(ActionKind::kBackwardInput);
      const bool weight = has(ActionKind::kBackwardWeight);
      if (input && weight) continue;
      const ActionKind missing = input    ? ActionKind::kBackwardWeight
                                 : weight ? ActionKind::kBackwardInput
                                          : ActionKind::kBackward;
      return NeverDone(schedule, missing, stage, microbatch);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Coverage> Coverage::Of(const Schedule& schedule) {
  TESSERA_RETURN_IF_ERROR(CheckSizes(schedule));
  Coverage coverage(schedule);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto actions = static_cast<int32_t>(schedule.ranks[rank].size());
    for (int32_t position = 0; position < actions; ++position) {
      TESSERA_RETURN_IF_ERROR(
          coverage.Enter(schedule, static_cast<int32_t>(rank), position));
    }
  }
  TESSERA_RETURN_IF_ERROR(coverage.CheckComplete(schedule));
  return coverage;
}

namespace {

class LocalOrder {
 public:
  LocalOrder(const Schedule& schedule, const Coverage& coverage, bool receives)
      : schedule_(schedule), coverage_(coverage), receives_(receives) {}

  absl::Status Check() const {
    for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const auto& actions = schedule_.ranks[rank];
      for (int32_t start = 0; start < static_cast<int32_t>(actions.size());) {
        const ActionPosition unit{static_cast<int32_t>(rank), start};
        TESSERA_RETURN_IF_ERROR(CheckPair(unit));
        const int32_t size = UnitSize(actions, start);
        for (int32_t i = 0; i < size; ++i) {
          TESSERA_RETURN_IF_ERROR(
              CheckNeeds({unit.rank, start + i}, /*start=*/start));
        }
        start += size;
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckPair(ActionPosition place) const {
    const auto& actions = schedule_.ranks[static_cast<size_t>(place.rank)];
    const auto at = static_cast<size_t>(place.position);
    const Action& first = actions[at];
    if (!first.with_next) return absl::OkStatus();
    if (at + 1 == actions.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          Describe(schedule_, place), " runs together with the action after ",
          "it, but is the rank's last"));
    }
    const Action& second = actions[at + 1];
    const auto are = [](const Action& forward, const Action& backward) {
      return forward.kind == ActionKind::kForward &&
             GivesInputGradient(backward.kind);
    };
    const bool compute = are(first, second) || are(second, first);
    if ((compute || AreFused(first, second)) && !second.with_next) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(schedule_, place), " runs together with ",
                     Describe(schedule_, {place.rank, place.position + 1}),
                     second.with_next ? " and the one after it" : "",
                     "; only a forward and a B or I may, or a send and a ",
                     "receive with the same rank"));
  }

  // A send and a receive with one rank. Messages have been matched, so each has
  // a peer.
  bool AreFused(const Action& first, const Action& second) const {
    return ((Sends(first.kind) && Receives(second.kind)) ||
            (Receives(first.kind) && Sends(second.kind))) &&
           PeerOf(schedule_, first) == PeerOf(schedule_, second);
  }

  // The positions, in the rank's own list, of the actions that it needs, or
  // kAbsent.
  std::array<int32_t, 2> NeedsOf(const Action& action) const {
    const auto own = [&](ActionKind kind) {
      return coverage_.PositionOf(kind, action.stage, action.microbatch);
    };
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        return {action.kind == ActionKind::kForward ? Coverage::kAbsent
                                                    : own(ActionKind::kForward),
                InputOf(action)};
      case ActionKind::kBackwardWeight:
        return {own(ActionKind::kBackwardInput), Coverage::kAbsent};
      case ActionKind::kSendForward:
        return {own(ActionKind::kForward), Coverage::kAbsent};
      case ActionKind::kSendBackward:
        return {
            coverage_.PositionOfInputGradient(action.stage, action.microbatch),
            Coverage::kAbsent};
      default:
        return {Coverage::kAbsent, Coverage::kAbsent};
    }
  }

  // The position of the action that produces the input of a forward or
  // backward.
  int32_t InputOf(const Action& action) const {
    const PassDirection direction = DirectionOf(action.kind);
    const int32_t source = SourceOf(schedule_, direction, action.stage);
    const int32_t microbatch = action.microbatch;
    if (source == kNoStage) return Coverage::kAbsent;
    if (schedule_.RankOf(source, microbatch) !=
        schedule_.RankOf(action.stage, microbatch)) {
      if (!receives_) return Coverage::kAbsent;
      return coverage_.PositionOf(ReceiveOf(direction), action.stage,
                                  microbatch);
    }
    return direction == PassDirection::kForward
               ? coverage_.PositionOf(ActionKind::kForward, source, microbatch)
               : coverage_.PositionOfInputGradient(source, microbatch);
  }

  absl::Status CheckNeeds(ActionPosition place, int32_t start) const {
    for (const int32_t need : NeedsOf(ActionAt(schedule_, place))) {
      if (need == Coverage::kAbsent || need < start) continue;
      const bool together = need <= start + 1 && place.position <= start + 1 &&
                            need < place.position;
      return absl::InvalidArgumentError(absl::StrCat(
          Describe(schedule_, place), " waits for ",
          Describe(schedule_, {place.rank, need}),
          together ? ", with which it runs together" : ", which comes later"));
    }
    return absl::OkStatus();
  }

  const Schedule& schedule_;
  const Coverage& coverage_;
  const bool receives_;
};

}  // namespace

absl::Status CheckLocalOrder(const Schedule& schedule, const Coverage& coverage,
                             bool receives) {
  return LocalOrder(schedule, coverage, receives).Check();
}

}  // namespace tessera::pipeline
