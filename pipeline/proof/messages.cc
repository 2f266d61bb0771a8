#include "pipeline/proof/messages.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/action_position.h"

namespace tessera::pipeline {

namespace {

constexpr std::array kDirections = {PassDirection::kForward,
                                    PassDirection::kBackward};

// Calls visit(direction, source, target, microbatch) for each message, until
// it fails.
template <typename Visit>
absl::Status ForEachMessage(const Schedule& schedule, const Visit& visit) {
  for (const PassDirection direction : kDirections) {
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
  return ForEachMessage(schedule, [&](PassDirection direction, int32_t source,
                                      int32_t target, int32_t microbatch) {
    const Action send{SendOf(direction), source, microbatch};
    const Action receive{ReceiveOf(direction), target, microbatch};
    for (const auto& [action, other] :
         {std::pair(send, receive), std::pair(receive, send)}) {
      if (coverage.PositionOf(action.kind, action.stage, microbatch) !=
          Coverage::kAbsent) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", schedule.RankOf(action.stage, microbatch),
          " never executes ", action.ToString(), ", for which rank ",
          schedule.RankOf(other.stage, microbatch), " waits with ",
          other.ToString()));
    }
    return absl::OkStatus();
  });
}

// The stage at the other end of a send or receive. InvalidArgument if it does
// not exist or is on the same rank.
absl::StatusOr<int32_t> OtherEnd(const Schedule& schedule,
                                 ActionPosition place) {
  const Action& action = ActionAt(schedule, place);
  const PassDirection direction = DirectionOf(action.kind);
  const int32_t other = Sends(action.kind)
                            ? TargetOf(schedule, direction, action.stage)
                            : SourceOf(schedule, direction, action.stage);
  if (other == kNoStage) {
    const bool last =
        (direction == PassDirection::kForward) == Sends(action.kind);
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(schedule, place),
        Sends(action.kind) ? " has no receiver" : " has no sender", ": stage ",
        action.stage, " is the ", last ? "last" : "first", " stage"));
  }
  if (schedule.RankOf(other, action.microbatch) == place.rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(schedule, place), " is not needed: stage ", other,
                     " is on the same rank"));
  }
  return other;
}

class ChannelTable {
 public:
  Channel& At(int32_t sender, int32_t receiver, PassDirection direction) {
    const auto [entry, added] = indices_.try_emplace(
        std::tuple(sender, receiver, direction), channels_.size());
    if (added) channels_.push_back({sender, receiver, direction, {}, {}});
    return channels_[entry->second];
  }
  std::vector<Channel> Take() { return std::move(channels_); }

 private:
  std::vector<Channel> channels_;
  absl::flat_hash_map<std::tuple<int32_t, int32_t, PassDirection>, size_t>
      indices_;
};

absl::Status Enter(const Schedule& schedule, ActionPosition place,
                   ChannelTable& table) {
  const Action& action = ActionAt(schedule, place);
  if (!Communicates(action.kind)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const int32_t other, OtherEnd(schedule, place));
  const int32_t peer = schedule.RankOf(other, action.microbatch);
  const PassDirection direction = DirectionOf(action.kind);
  if (Sends(action.kind)) {
    table.At(place.rank, peer, direction).sends.push_back(place.position);
  } else {
    table.At(peer, place.rank, direction).receives.push_back(place.position);
  }
  return absl::OkStatus();
}

absl::Status CheckOrder(const Schedule& schedule, const Channel& channel) {
  for (size_t i = 0; i < channel.sends.size(); ++i) {
    const ActionPosition send{channel.sender, channel.sends[i]};
    const ActionPosition receive{channel.receiver, channel.receives[i]};
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
      const ActionPosition place{static_cast<int32_t>(rank), position};
      TESSERA_RETURN_IF_ERROR(Enter(schedule, place, table));
    }
  }
  // No message is superfluous or repeated (Coverage). If none is missing
  // either, every channel has as many sends as receives.
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

namespace {

constexpr int32_t kNobody = -1;
// The maximum number of a cycle's ranks that an error names.
constexpr size_t kMostNamed = 8;

// Executes the ranks until all are done or none can continue.
class Progress {
 public:
  Progress(const Schedule& schedule, bool rendezvous)
      : schedule_(schedule),
        rendezvous_(rendezvous),
        at_(schedule.ranks.size(), 0),
        completed_(schedule.ranks.size()) {
    for (const auto& actions : schedule.ranks) {
      waits_.emplace_back(actions.size());
      waiters_.emplace_back(actions.size(), kNobody);
    }
  }

  // `place` cannot complete before `wait` has. Under rendezvous both wait for
  // each other. At most one place waits for each.
  void AddWait(ActionPosition place, ActionPosition wait) {
    waits_[static_cast<size_t>(place.rank)]
          [static_cast<size_t>(place.position)] = wait;
  }

  absl::Status Run() {
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      ready_.push_back(static_cast<int32_t>(rank));
      while (!ready_.empty()) {
        const int32_t next = ready_.back();
        ready_.pop_back();
        Advance(next);
      }
    }
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      if (!Done(rank)) return Stalled(static_cast<int32_t>(rank));
    }
    return absl::OkStatus();
  }

 private:
  bool Done(size_t rank) const {
    return static_cast<size_t>(at_[rank]) == schedule_.ranks[rank].size();
  }
  const ActionPosition& WaitOf(ActionPosition place) const {
    return waits_[static_cast<size_t>(place.rank)]
                 [static_cast<size_t>(place.position)];
  }
  // The number of actions that start together at the position of `rank`.
  int32_t SizeAt(int32_t rank) const {
    const auto index = static_cast<size_t>(rank);
    return UnitSize(schedule_.ranks[index], at_[index]);
  }
  bool& Completed(ActionPosition place) {
    const auto rank = static_cast<size_t>(place.rank);
    return completed_[rank][static_cast<size_t>(place.position - at_[rank])];
  }

  // Returns true if the rank of `place` is at it.
  bool IsOpen(ActionPosition place) const {
    const int32_t at = at_[static_cast<size_t>(place.rank)];
    return !Done(static_cast<size_t>(place.rank)) && place.position >= at &&
           place.position < at + SizeAt(place.rank);
  }
  bool HasHappened(ActionPosition place) const {
    const auto rank = static_cast<size_t>(place.rank);
    const int32_t at = at_[rank];
    return place.position < at ||
           (IsOpen(place) &&
            completed_[rank][static_cast<size_t>(place.position - at)]);
  }
  // Returns true if an open place cannot complete yet.
  bool IsHeld(ActionPosition place) const {
    const ActionPosition& wait = WaitOf(place);
    if (wait.rank == kNobody || HasHappened(place)) return false;
    return rendezvous_ ? !IsOpen(wait) : !HasHappened(wait);
  }

  // The first place of the current unit of `rank` that cannot complete; its
  // position is kNobody if all can.
  ActionPosition HeldAt(int32_t rank) const {
    const int32_t start = at_[static_cast<size_t>(rank)];
    for (int32_t i = 0; i < SizeAt(rank); ++i) {
      if (IsHeld({rank, start + i})) return {rank, start + i};
    }
    return {rank, kNobody};
  }

  void Advance(int32_t rank) {
    while (!Done(static_cast<size_t>(rank)) && CompleteUnit(rank)) Pass(rank);
  }

  // Completes the parts of the unit of `rank` that can complete: messages one
  // by one, but computations that run together only all at once. Returns true
  // if all are complete.
  bool CompleteUnit(int32_t rank) {
    const auto index = static_cast<size_t>(rank);
    const int32_t start = at_[index];
    const bool alone = Communicates(ActionAt(schedule_, {rank, start}).kind);
    const int32_t size = SizeAt(rank);
    bool all = true;
    for (int32_t i = 0; i < size; ++i) {
      const ActionPosition place{rank, start + i};
      if (IsHeld(place)) {
        all = false;
        AddWaiter(WaitOf(place), rank);
      } else if (alone) {
        Complete(place);
      }
    }
    return all;
  }

  // Under rendezvous the second arrival completes both, so arriving at a place
  // wakes no other rank.
  void AddWaiter(ActionPosition wait, int32_t rank) {
    if (rendezvous_) return;
    waiters_[static_cast<size_t>(wait.rank)]
            [static_cast<size_t>(wait.position)] = rank;
  }

  void Complete(ActionPosition place) {
    if (std::exchange(Completed(place), true)) return;
    Wake(place);
    const ActionPosition& peer = WaitOf(place);
    if (!rendezvous_ || peer.rank == kNobody) return;
    Completed(peer) = true;
    ready_.push_back(peer.rank);
  }

  void Wake(ActionPosition place) {
    const int32_t waiter = waiters_[static_cast<size_t>(place.rank)]
                                   [static_cast<size_t>(place.position)];
    if (waiter != kNobody) ready_.push_back(waiter);
  }

  void Pass(int32_t rank) {
    const auto index = static_cast<size_t>(rank);
    const int32_t start = at_[index];
    const int32_t size = SizeAt(rank);
    at_[index] += size;
    completed_[index] = {};
    for (int32_t i = 0; i < size; ++i) Wake({rank, start + i});
  }

  // The held place that blocks `held`: the place that it waits for, or the
  // current place of that place's rank.
  ActionPosition Next(ActionPosition held) const {
    const ActionPosition& wait = WaitOf(held);
    return IsOpen(wait) && IsHeld(wait) ? wait : HeldAt(wait.rank);
  }

  // Every stalled rank waits for another stalled rank, so following the waits
  // from any of them leads into a cycle.
  absl::Status Stalled(int32_t rank) const {
    const auto order = [](const ActionPosition& a, const ActionPosition& b) {
      return std::pair(a.rank, a.position) < std::pair(b.rank, b.position);
    };
    std::set<ActionPosition, decltype(order)> seen(order);
    ActionPosition at = HeldAt(rank);
    while (seen.insert(at).second) at = Next(at);
    std::vector<ActionPosition> cycle = {at};
    for (ActionPosition on = Next(at); on != at; on = Next(on))
      cycle.push_back(on);
    std::rotate(cycle.begin(),
                std::min_element(cycle.begin(), cycle.end(), order),
                cycle.end());
    return absl::InvalidArgumentError(
        absl::StrCat("deadlock: ", DescribeCycle(cycle)));
  }

  std::string DescribeCycle(std::span<const ActionPosition> cycle) const {
    std::string text = Describe(schedule_, cycle[0]);
    for (size_t i = 0; i < std::min(cycle.size(), kMostNamed); ++i) {
      const ActionPosition wait = WaitOf(cycle[i]);
      const ActionPosition next = cycle[(i + 1) % cycle.size()];
      absl::StrAppend(&text, i == 0 ? " waits for " : ", which waits for ",
                      Describe(schedule_, wait));
      if (wait != next) {
        absl::StrAppend(&text, ", which comes after ",
                        Describe(schedule_, next));
      }
    }
    if (cycle.size() > kMostNamed) {
      absl::StrAppend(&text, ", and so on over ", cycle.size(), " ranks");
    }
    return text;
  }

  const Schedule& schedule_;
  const bool rendezvous_;
  std::vector<int32_t> at_;  // By rank, its position.
  std::vector<std::array<bool, 2>>
      completed_;  // By rank, the completed parts of the unit.
  std::vector<std::vector<ActionPosition>> waits_;
  std::vector<std::vector<int32_t>> waiters_;  // The places that wait for it.
  std::vector<int32_t> ready_;
};

}  // namespace

absl::Status CheckMessagesFlow(const Schedule& schedule,
                               std::span<const Channel> channels,
                               int64_t buffers) {
  Progress progress(schedule, /*rendezvous=*/buffers == 0);
  for (const Channel& channel : channels) {
    for (size_t i = 0; i < channel.sends.size(); ++i) {
      const ActionPosition send{channel.sender, channel.sends[i]};
      progress.AddWait({channel.receiver, channel.receives[i]}, send);
      // With buffers, a send waits for the receive that frees a buffer.
      const int64_t room = static_cast<int64_t>(i) - buffers;
      if (room < 0) continue;
      progress.AddWait(send, {channel.receiver,
                              channel.receives[static_cast<size_t>(room)]});
    }
  }
  return progress.Run();
}

absl::Status CheckComputationsFlow(const Schedule& schedule,
                                   const Coverage& coverage) {
  Progress progress(schedule, /*rendezvous=*/false);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto& actions = schedule.ranks[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      if (action.kind != ActionKind::kForward &&
          !GivesInputGradient(action.kind)) {
        continue;
      }
      const PassDirection direction = DirectionOf(action.kind);
      const int32_t source = SourceOf(schedule, direction, action.stage);
      if (source == kNoStage) continue;
      const int32_t microbatch = action.microbatch;
      const int32_t owner = schedule.RankOf(source, microbatch);
      if (owner == static_cast<int32_t>(rank)) continue;
      const int32_t position =
          direction == PassDirection::kForward
              ? coverage.PositionOf(action.kind, source, microbatch)
              : coverage.PositionOfInputGradient(source, microbatch);
      progress.AddWait({static_cast<int32_t>(rank), static_cast<int32_t>(i)},
                       {owner, position});
    }
  }
  return progress.Run();
}

}  // namespace tessera::pipeline
