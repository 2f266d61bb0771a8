#include "pipeline/proof/messages.h"

#include <array>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

constexpr std::array kDirections = {Direction::kForward, Direction::kBackward};

// Calls visit(direction, source, target, microbatch) for each message, until
// it fails.
template <typename Visit>
absl::Status ForEachMessage(const Schedule& schedule, const Visit& visit) {
  for (const Direction direction : kDirections) {
    for (int32_t target = 0; target < schedule.map.stages(); ++target) {
      const int32_t source = SourceOf(schedule, direction, target);
      if (source == kNoStage) continue;
      for (int32_t mb = 0; mb < schedule.microbatches; ++mb) {
        if (schedule.RankOf(source, mb) == schedule.RankOf(target, mb)) {
          continue;
        }
        TESSERA_RETURN_IF_ERROR(visit(direction, source, target, mb));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPresent(const Schedule& schedule, const Coverage& coverage) {
  return ForEachMessage(schedule, [&](Direction direction, int32_t source,
                                      int32_t target, int32_t microbatch) {
    const Action send{SendOf(direction), source, microbatch};
    const Action receive{ReceiveOf(direction), target, microbatch};
    for (const auto& [action, other] :
         {std::pair(send, receive), std::pair(receive, send)}) {
      if (coverage.PositionOf(action.kind, action.stage, microbatch) !=
          Coverage::kAbsent) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", schedule.RankOf(action.stage, microbatch),
                       " never does ", action.ToString(), ", for which rank ",
                       schedule.RankOf(other.stage, microbatch), " waits with ",
                       other.ToString()));
    }
    return absl::OkStatus();
  });
}

// The stage at the other end of a send or receive. InvalidArgument where there
// is none, or it is on the same rank.
absl::StatusOr<int32_t> OtherEnd(const Schedule& schedule, Place place) {
  const Action& action = ActionAt(schedule, place);
  const Direction direction = DirectionOf(action.kind);
  const int32_t other = Sends(action.kind)
                            ? TargetOf(schedule, direction, action.stage)
                            : SourceOf(schedule, direction, action.stage);
  if (other == kNoStage) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(schedule, place), " is in vain: stage ",
                     action.stage, " is the pipeline's end"));
  }
  if (schedule.RankOf(other, action.microbatch) == place.rank) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(schedule, place),
                                                   " is in vain: stage ", other,
                                                   " is on the same rank"));
  }
  return other;
}

class ChannelTable {
 public:
  Channel& At(int32_t sender, int32_t receiver, Direction direction) {
    const auto [entry, added] = indices_.try_emplace(
        std::tuple(sender, receiver, direction), channels_.size());
    if (added) channels_.push_back({sender, receiver, direction, {}, {}});
    return channels_[entry->second];
  }
  std::vector<Channel> Take() { return std::move(channels_); }

 private:
  std::vector<Channel> channels_;
  absl::flat_hash_map<std::tuple<int32_t, int32_t, Direction>, size_t> indices_;
};

absl::Status Enter(const Schedule& schedule, Place place, ChannelTable& table) {
  const Action& action = ActionAt(schedule, place);
  if (!Communicates(action.kind)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const int32_t other, OtherEnd(schedule, place));
  const int32_t peer = schedule.RankOf(other, action.microbatch);
  const Direction direction = DirectionOf(action.kind);
  if (Sends(action.kind)) {
    table.At(place.rank, peer, direction).sends.push_back(place.position);
  } else {
    table.At(peer, place.rank, direction).receives.push_back(place.position);
  }
  return absl::OkStatus();
}

absl::Status CheckOrder(const Schedule& schedule, const Channel& channel) {
  for (size_t i = 0; i < channel.sends.size(); ++i) {
    const Place send{channel.sender, channel.sends[i]};
    const Place receive{channel.receiver, channel.receives[i]};
    const Action& sent = ActionAt(schedule, send);
    const Action& received = ActionAt(schedule, receive);
    if (received.microbatch == sent.microbatch &&
        received.stage == TargetOf(schedule, channel.direction, sent.stage)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(schedule, receive), " waits for its message, but the next ",
        "from rank ", channel.sender, " is that of ", Describe(schedule, send),
        ": the two ranks' orders differ"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t CountMessages(const Schedule& schedule) {
  int64_t messages = 0;
  const absl::Status never_fails = ForEachMessage(schedule, [&](auto...) {
    ++messages;
    return absl::OkStatus();
  });
  return never_fails.ok() ? messages : 0;
}

absl::StatusOr<std::vector<Channel>> MatchMessages(const Schedule& schedule,
                                                   const Coverage& coverage) {
  ChannelTable table;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto actions = static_cast<int32_t>(schedule.ranks[rank].size());
    for (int32_t position = 0; position < actions; ++position) {
      const Place place{static_cast<int32_t>(rank), position};
      TESSERA_RETURN_IF_ERROR(Enter(schedule, place, table));
    }
  }
  // None is in vain and none is twice (Coverage): where none is missing either,
  // the two sides of every channel are equally many.
  TESSERA_RETURN_IF_ERROR(CheckPresent(schedule, coverage));
  std::vector<Channel> channels = table.Take();
  for (const Channel& channel : channels) {
    TESSERA_RETURN_IF_ERROR(CheckOrder(schedule, channel));
  }
  return channels;
}

absl::Status CheckNoMessages(const Schedule& schedule) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto& actions = schedule.ranks[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      if (!Communicates(actions[i].kind)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          Describe(schedule,
                   {static_cast<int32_t>(rank), static_cast<int32_t>(i)}),
          " is communication, in a schedule whose communication is implied"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::pipeline
