#include "pipeline/proof/testing/oracle.h"

#include <array>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera::pipeline {
namespace {

using enum ActionKind;

class Oracle {
 public:
  Oracle(const Schedule& schedule, const ValidateOptions& options)
      : s_(schedule),
        options_(options),
        at_(schedule.ranks.size()),
        exchanged_(schedule.ranks.size()) {
    for (size_t rank = 0; rank < s_.ranks.size(); ++rank) {
      for (const Action& action : s_.ranks[rank]) {
        if (action.kind == kUnshard || action.kind == kReshard) {
          gathers_.insert({rank, action.stage});
        }
        reduces_ |= action.kind == kReduceGradient;
      }
    }
  }

  bool Run() {
    for (bool moved = true; moved && !wrong_;) {
      moved = false;
      for (size_t rank = 0; rank < at_.size(); ++rank) moved |= Step(rank);
    }
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      wrong_ |= at_[rank] != s_.ranks[rank].size();
    }
    for (const auto& [channel, messages] : channels_) {
      wrong_ |= !messages.empty();
    }
    return !wrong_ && gathered_.empty() && EverythingOnce();
  }

 private:
  using Key = std::tuple<ActionKind, int32_t, int32_t>;
  int Count(ActionKind kind, int32_t stage, int32_t mb) const {
    const auto found = count_.find({kind, stage, mb});
    return found == count_.end() ? 0 : found->second;
  }
  bool IsEnd(int32_t stage) const {
    return stage < 0 || stage >= s_.map.stages();
  }

  bool EverythingOnce() const {
    for (int32_t stage = 0; stage < s_.map.stages(); ++stage) {
      for (int32_t mb = 0; mb < s_.microbatches; ++mb) {
        const int whole = Count(kBackward, stage, mb);
        const int halves = 1 - whole;
        if (Count(kForward, stage, mb) != 1 || whole > 1 ||
            Count(kBackwardInput, stage, mb) != halves ||
            Count(kBackwardWeight, stage, mb) != halves) {
          return false;
        }
      }
      for (size_t rank = 0; rank < s_.ranks.size(); ++rank) {
        if (reduces_ && Holds(rank, stage) && !reduced_.count({rank, stage})) {
          return false;
        }
      }
    }
    return true;
  }

  bool Holds(size_t rank, int32_t stage) const {
    for (const int32_t held : s_.map.StagesOf(static_cast<int32_t>(rank))) {
      if (held == stage) return true;
    }
    return false;
  }

  // Inputs and results of computations are on one rank, or on all of them (-1)
  // if communication is implied.
  bool Has(size_t rank, const std::string& thing) const {
    const bool implied = options_.communication == Communication::kImplied;
    return has_.count({implied ? -1 : static_cast<int>(rank), thing}) != 0;
  }
  void Give(size_t rank, const std::string& thing) {
    const bool implied = options_.communication == Communication::kImplied;
    has_.insert({implied ? -1 : static_cast<int>(rank), thing});
  }
  static std::string Thing(const char* what, int32_t stage, int32_t mb) {
    return what + std::to_string(stage) + "," + std::to_string(mb);
  }

  bool CanCompute(size_t rank, const Action& a) const {
    if (a.kind != kBackwardWeight && gathers_.count({rank, a.stage}) &&
        !gathered_.count({rank, a.stage})) {
      return false;
    }
    const bool first = a.stage == 0;
    const bool last = a.stage == s_.map.stages() - 1;
    switch (a.kind) {
      case kForward:
        return first || Has(rank, Thing("x", a.stage, a.microbatch));
      case kBackward:
      case kBackwardInput:
        return Has(rank, Thing("f", a.stage, a.microbatch)) &&
               (last || Has(rank, Thing("g", a.stage, a.microbatch)));
      default:
        return Has(rank, Thing("i", a.stage, a.microbatch));
    }
  }

  void Compute(size_t rank, const Action& a) {
    // Gradients that must be followed by another reduction.
    if (GivesWeightGradient(a.kind)) {
      const bool is_first = weighted_.insert({rank, a.stage}).second;
      wrong_ |= reduced_.erase({rank, a.stage}) > 0 && is_first;
    }
    if (a.kind == kForward) {
      Give(rank, Thing("f", a.stage, a.microbatch));
      PassLocally(rank, "x", a.stage + 1, a.microbatch);
    } else if (a.kind != kBackwardWeight) {
      Give(rank, Thing("b", a.stage, a.microbatch));
      if (a.kind == kBackwardInput) {
        Give(rank, Thing("i", a.stage, a.microbatch));
      }
      PassLocally(rank, "g", a.stage - 1, a.microbatch);
    }
  }
  void PassLocally(size_t rank, const char* what, int32_t stage, int32_t mb) {
    if (IsEnd(stage)) return;
    if (options_.communication == Communication::kImplied ||
        s_.RankOf(stage, mb) == static_cast<int32_t>(rank)) {
      Give(rank, Thing(what, stage, mb));
    }
  }

  bool IsSound(size_t rank, const Action& a) const {
    if (IsEnd(a.stage)) return false;
    if (!HasMicroBatch(a.kind)) {
      return a.microbatch == kNoMicroBatch && Holds(rank, a.stage);
    }
    return a.microbatch >= 0 && a.microbatch < s_.microbatches &&
           s_.RankOf(a.stage, a.microbatch) == static_cast<int32_t>(rank);
  }

  bool Step(size_t rank) {
    const auto& list = s_.ranks[rank];
    if (wrong_ || at_[rank] == list.size()) return false;
    const Action& a = list[at_[rank]];
    wrong_ |= !IsSound(rank, a);
    if (Communicates(a.kind)) return StepMessages(rank);
    if (a.with_next) return StepPair(rank);
    if (wrong_) return false;
    if (Computes(a.kind)) {
      if (!CanCompute(rank, a)) return false;
      Compute(rank, a);
    } else {
      Parameters(rank, a);
    }
    return Done(rank, a);
  }

  bool Done(size_t rank, const Action& a) {
    if (HasMicroBatch(a.kind)) {
      wrong_ |= ++count_[{a.kind, a.stage, a.microbatch}] > 1;
    }
    ++at_[rank];
    return true;
  }

  bool StepPair(size_t rank) {
    const auto& list = s_.ranks[rank];
    if (at_[rank] + 1 == list.size()) wrong_ = true;
    if (wrong_) return false;
    const Action& a = list[at_[rank]];
    const Action& b = list[at_[rank] + 1];
    const bool right = (a.kind == kForward && GivesInputGradient(b.kind)) ||
                       (b.kind == kForward && GivesInputGradient(a.kind));
    wrong_ |= !IsSound(rank, b) || !right || b.with_next;
    if (wrong_ || !CanCompute(rank, a) || !CanCompute(rank, b)) return false;
    Compute(rank, a);
    Compute(rank, b);
    Done(rank, a);
    return Done(rank, b);
  }

  void Parameters(size_t rank, const Action& a) {
    const std::pair key(rank, a.stage);
    if (a.kind == kUnshard) {
      wrong_ |= !gathered_.insert(key).second;
    } else if (a.kind == kReshard) {
      wrong_ |= gathered_.erase(key) == 0;
    } else {
      wrong_ |= !reduced_.insert(key).second;
    }
  }

  // The messages at a rank's position: one, or a send and a receive together.
  size_t MessagesAt(size_t rank) const {
    const auto& list = s_.ranks[rank];
    if (at_[rank] == list.size() || !Communicates(list[at_[rank]].kind)) {
      return 0;
    }
    return list[at_[rank]].with_next && at_[rank] + 1 < list.size() ? 2 : 1;
  }

  // The peer rank, or -1 if there is none.
  int32_t OtherEnd(size_t rank, const Action& a) const {
    const bool forward = a.kind == kSendForward || a.kind == kReceiveForward;
    const int32_t other = a.stage + (forward == Sends(a.kind) ? 1 : -1);
    if (IsEnd(other)) return -1;
    const int32_t owner = s_.RankOf(other, a.microbatch);
    return owner == static_cast<int32_t>(rank) ? -1 : owner;
  }

  bool StepMessages(size_t rank) {
    const auto& list = s_.ranks[rank];
    const Action& a = list[at_[rank]];
    wrong_ |= options_.communication == Communication::kImplied;
    const size_t messages = MessagesAt(rank);
    wrong_ |= a.with_next && messages != 2;
    for (size_t i = 0; i < messages && !wrong_; ++i) {
      wrong_ |= !IsSound(rank, list[at_[rank] + i]) ||
                OtherEnd(rank, list[at_[rank] + i]) < 0;
    }
    if (messages == 2 && !wrong_) {
      const Action& b = list[at_[rank] + 1];
      wrong_ |= !Communicates(b.kind) || b.with_next ||
                Sends(a.kind) == Sends(b.kind) ||
                OtherEnd(rank, a) != OtherEnd(rank, b);
    }
    bool moved = false;
    for (size_t i = 0; i < messages && !wrong_; ++i) {
      const Action& message = list[at_[rank] + i];
      if (exchanged_[rank][i]) continue;
      if (Sends(message.kind)) moved |= Send(rank, i);
      if (Receives(message.kind)) moved |= Take(rank, i);
    }
    if (wrong_ || !exchanged_[rank][0] ||
        (messages == 2 && !exchanged_[rank][1])) {
      return moved;
    }
    exchanged_[rank] = {};
    at_[rank] += messages;
    return true;
  }

  void Exchanged(size_t rank, size_t i) {
    const Action& a = s_.ranks[rank][at_[rank] + i];
    wrong_ |= ++count_[{a.kind, a.stage, a.microbatch}] > 1;
    exchanged_[rank][i] = true;
  }

  static bool IsForward(const Action& a) {
    return a.kind == kSendForward || a.kind == kReceiveForward;
  }

  // With buffers, from the channel.
  bool Take(size_t rank, size_t i) {
    const Action& a = s_.ranks[rank][at_[rank] + i];
    const auto peer = static_cast<size_t>(OtherEnd(rank, a));
    auto& channel = channels_[{peer, rank, IsForward(a)}];
    if (options_.buffers == 0 || channel.empty()) return false;
    Receive(rank, i, &channel);
    return true;
  }

  bool Send(size_t rank, size_t i) {
    const Action& a = s_.ranks[rank][at_[rank] + i];
    const auto peer = static_cast<size_t>(OtherEnd(rank, a));
    const bool forward = IsForward(a);
    const int32_t other = a.stage + (forward ? 1 : -1);
    if (!Has(rank, Thing(forward ? "f" : "b", a.stage, a.microbatch))) {
      wrong_ = true;  // No other rank could provide it in the meantime.
      return false;
    }
    auto& channel = channels_[{rank, peer, forward}];
    if (options_.buffers > 0) {
      if (static_cast<int64_t>(channel.size()) == options_.buffers) {
        return false;
      }
      channel.push_back({other, a.microbatch});
      Exchanged(rank, i);
      return true;
    }
    // Rendezvous: the peer must be at a receive from here.
    for (size_t j = 0; j < MessagesAt(peer); ++j) {
      const Action& b = s_.ranks[peer][at_[peer] + j];
      if (exchanged_[peer][j] || !Receives(b.kind) || IsForward(b) != forward ||
          !IsSound(peer, b) ||
          OtherEnd(peer, b) != static_cast<int32_t>(rank)) {
        continue;
      }
      channel.push_back({other, a.microbatch});
      Receive(peer, j, &channel);
      Exchanged(rank, i);
      return true;
    }
    return false;
  }

  void Receive(size_t rank, size_t i,
               std::deque<std::pair<int32_t, int32_t>>* channel) {
    const Action& a = s_.ranks[rank][at_[rank] + i];
    wrong_ |= channel->front() != std::pair(a.stage, a.microbatch);
    channel->pop_front();
    Give(rank, Thing(IsForward(a) ? "x" : "g", a.stage, a.microbatch));
    Exchanged(rank, i);
  }

  const Schedule& s_;
  const ValidateOptions options_;
  std::vector<size_t> at_;
  std::vector<std::array<bool, 2>> exchanged_;  // For its current messages.
  bool wrong_ = false;
  bool reduces_ = false;
  std::set<std::pair<size_t, int32_t>> gathers_, gathered_, weighted_, reduced_;
  std::set<std::pair<int, std::string>> has_;
  std::map<Key, int> count_;
  std::map<std::tuple<size_t, size_t, bool>,
           std::deque<std::pair<int32_t, int32_t>>>
      channels_;
};

}  // namespace

bool OracleAllows(const Schedule& schedule, const ValidateOptions& options) {
  if (static_cast<int64_t>(schedule.ranks.size()) != schedule.map.ranks()) {
    return false;
  }
  return Oracle(schedule, options).Run();
}

}  // namespace tessera::pipeline
