#include "pipeline/proof/local_order.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/place.h"

namespace tessera::pipeline {
namespace {

class LocalOrder {
 public:
  LocalOrder(const Schedule& schedule, const Coverage& coverage, bool receives)
      : schedule_(schedule), coverage_(coverage), receives_(receives) {}

  absl::Status Check() const {
    for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      const auto& actions = schedule_.ranks[rank];
      for (int32_t start = 0; start < static_cast<int32_t>(actions.size());) {
        const Place unit{static_cast<int32_t>(rank), start};
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
  absl::Status CheckPair(Place place) const {
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

  // A send and a receive with one rank. Messages have been matched: each has
  // another end.
  bool AreFused(const Action& first, const Action& second) const {
    return ((Sends(first.kind) && Receives(second.kind)) ||
            (Receives(first.kind) && Sends(second.kind))) &&
           PeerOf(schedule_, first) == PeerOf(schedule_, second);
  }

  // Of what the action needs, the positions in its own rank's list, or kAbsent.
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

  // Where a forward or backward has its input from.
  int32_t InputOf(const Action& action) const {
    const Direction direction = DirectionOf(action.kind);
    const int32_t source = SourceOf(schedule_, direction, action.stage);
    const int32_t microbatch = action.microbatch;
    if (source == kNoStage) return Coverage::kAbsent;
    if (schedule_.RankOf(source, microbatch) !=
        schedule_.RankOf(action.stage, microbatch)) {
      if (!receives_) return Coverage::kAbsent;
      return coverage_.PositionOf(ReceiveOf(direction), action.stage,
                                  microbatch);
    }
    return direction == Direction::kForward
               ? coverage_.PositionOf(ActionKind::kForward, source, microbatch)
               : coverage_.PositionOfInputGradient(source, microbatch);
  }

  absl::Status CheckNeeds(Place place, int32_t start) const {
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
