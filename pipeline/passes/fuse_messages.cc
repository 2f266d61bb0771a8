#include "pipeline/passes/fuse_messages.h"

#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/passes/units.h"
#include "pipeline/proof/place.h"

namespace tessera::pipeline {
namespace {

constexpr int32_t kNoPeer = -1;

// The rank at a message's other end.
absl::StatusOr<int32_t> CheckedPeer(const Schedule& schedule, Place place) {
  const Action& action = ActionAt(schedule, place);
  const bool exists =
      action.stage >= 0 && action.stage < schedule.map.stages() &&
      action.microbatch >= 0 && action.microbatch < schedule.microbatches;
  const Direction direction = DirectionOf(action.kind);
  const int32_t other = !exists ? kNoStage
                        : Sends(action.kind)
                            ? TargetOf(schedule, direction, action.stage)
                            : SourceOf(schedule, direction, action.stage);
  if (other == kNoStage) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(schedule, place), " has no other end: there are ",
                     schedule.map.stages(), " stages and ",
                     schedule.microbatches, " micro-batches"));
  }
  return PeerOf(schedule, action);
}

// Of each unit that is one message, the peer; kNoPeer of the others.
absl::StatusOr<std::vector<int32_t>> PeersOf(
    const Schedule& schedule, size_t rank,
    std::span<const std::span<const Action>> units) {
  std::vector<int32_t> peers;
  for (const std::span<const Action> unit : units) {
    peers.push_back(kNoPeer);
    if (unit.size() > 1 || !Communicates(unit[0].kind)) continue;
    const auto position =
        static_cast<int32_t>(unit.data() - schedule.ranks[rank].data());
    TESSERA_ASSIGN_OR_RETURN(
        peers.back(),
        CheckedPeer(schedule, {static_cast<int32_t>(rank), position}));
  }
  return peers;
}

}  // namespace

absl::StatusOr<Schedule> FuseMessages(const Schedule& schedule) {
  if (static_cast<int64_t>(schedule.ranks.size()) != schedule.map.ranks()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the schedule has ", schedule.ranks.size(), " lists of actions; its ",
        "map has ", schedule.map.ranks(), " ranks"));
  }
  Schedule fused = schedule;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    TESSERA_ASSIGN_OR_RETURN(const auto units, UnitsOf(schedule, rank));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int32_t> peers,
                             PeersOf(schedule, rank, units));
    for (size_t at = 0; at + 1 < units.size(); ++at) {
      if (peers[at] == kNoPeer || peers[at] != peers[at + 1] ||
          Sends(units[at][0].kind) == Sends(units[at + 1][0].kind)) {
        continue;
      }
      const auto position =
          static_cast<size_t>(units[at].data() - schedule.ranks[rank].data());
      fused.ranks[rank][position].with_next = true;
      ++at;
    }
  }
  return fused;
}

}  // namespace tessera::pipeline
