#include "pipeline/simulate/simulation.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/action_position.h"
#include "pipeline/simulate/rank_memory.h"

namespace tessera::pipeline {

namespace {

bool IsThere(const Schedule& schedule, const Action& action) {
  return action.stage >= 0 && action.stage < schedule.map.stages() &&
         (!HasMicroBatch(action.kind) ||
          (action.microbatch >= 0 &&
           action.microbatch < schedule.microbatches));
}

absl::Status NotThere(const Schedule& schedule, ActionPosition place) {
  return absl::InvalidArgumentError(absl::StrCat(
      Describe(schedule, place), ": there are ", schedule.map.stages(),
      " stages and ", schedule.microbatches, " micro-batches"));
}

absl::Status OfOtherRank(const Schedule& schedule, ActionPosition place) {
  const Action& action = ActionAt(schedule, place);
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(schedule, place), " belongs to rank ",
                   schedule.RankOf(action.stage, action.microbatch)));
}

absl::Status CheckMessage(const Schedule& schedule, ActionPosition place) {
  const Action& action = ActionAt(schedule, place);
  const PassDirection direction = DirectionOf(action.kind);
  const int32_t other = Sends(action.kind)
                            ? TargetOf(schedule, direction, action.stage)
                            : SourceOf(schedule, direction, action.stage);
  if (other != kNoStage &&
      schedule.RankOf(other, action.microbatch) != place.rank) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Describe(schedule, place),
      " connects no two ranks; remove it, and see Validate for other "
      "errors of the schedule"));
}

absl::Status CheckSize(const Schedule& schedule) {
  // Larger than the limits of the generators and readers.
  constexpr int64_t kMost = int64_t{1} << 24;
  const int64_t microbatches = schedule.microbatches;
  if (microbatches < 0 || microbatches > kMost / schedule.map.stages()) {
    return absl::InvalidArgumentError(absl::StrCat(
        microbatches, " micro-batches in ", schedule.map.stages(),
        " stages; from 0 to ", kMost, " of both multiplied are simulated"));
  }
  if (static_cast<int64_t>(schedule.ranks.size()) == schedule.map.ranks()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("lists of ", schedule.ranks.size(), " ranks for a map of ",
                   schedule.map.ranks()));
}

absl::Status CheckBytes(const Schedule& schedule, const Costs& costs) {
  constexpr int64_t kMost = int64_t{1} << 62;
  size_t longest = 1;
  for (const auto& actions : schedule.ranks) {
    longest = std::max(longest, actions.size());
  }
  const int64_t most = kMost / static_cast<int64_t>(longest) / 2;
  for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const StageCosts& cost = costs.stages[stage];
    for (const int64_t bytes : {cost.forward_bytes, cost.backward_input_bytes,
                                cost.backward_weight_bytes,
                                cost.unsharded_bytes, cost.unreduced_bytes}) {
      if (bytes >= -most && bytes <= most) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          bytes, " bytes in stage ", stage, " for a rank of ", longest,
          " actions; ", most, " at most can be added up"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Contents> CheckInputs(const Schedule& schedule,
                                     const Costs& costs) {
  TESSERA_RETURN_IF_ERROR(CheckLinks(costs.links, schedule.map.ranks()));
  TESSERA_RETURN_IF_ERROR(CheckCosts(costs, schedule.map.stages()));
  TESSERA_RETURN_IF_ERROR(CheckSize(schedule));
  TESSERA_RETURN_IF_ERROR(CheckBytes(schedule, costs));
  Contents contents;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto& actions = schedule.ranks[rank];
    for (size_t at = 0; at < actions.size(); ++at) {
      const ActionPosition place{static_cast<int32_t>(rank),
                                 static_cast<int32_t>(at)};
      const Action& action = actions[at];
      if (!IsThere(schedule, action)) return NotThere(schedule, place);
      if (!HasMicroBatch(action.kind)) {
        contents.parameters = true;
        continue;
      }
      if (schedule.RankOf(action.stage, action.microbatch) != place.rank) {
        return OfOtherRank(schedule, place);
      }
      if (Computes(action.kind)) continue;
      contents.messages = true;
      TESSERA_RETURN_IF_ERROR(CheckMessage(schedule, place));
    }
  }
  return contents;
}

namespace {

Messages MessagesOf(const Contents& contents, const Costs& costs) {
  if (!contents.messages) return Messages::kImplied;
  return costs.overlap_communication ? Messages::kBeside
                                     : Messages::kRendezvous;
}

}  // namespace

Simulation::Simulation(const Schedule& schedule, const Costs& costs,
                       const Contents& contents, bool traces)
    : schedule_(schedule),
      costs_(costs),
      contents_(contents),
      traces_(traces),
      messages_(MessagesOf(contents, costs)),
      hops_(schedule, costs),
      wire_(hops_),
      results_(schedule),
      states_(schedule.ranks.size(), RankState(traces || contents.parameters)) {
  if (messages_ == Messages::kRendezvous) meetings_.emplace(schedule);
  timeline_.ranks.resize(schedule.ranks.size());
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    const size_t actions = schedule.ranks[rank].size();
    timeline_.ranks[rank].computations.reserve(actions);
    states_[rank].memory.Reserve(actions);
    if (traces_ && (contents_.messages || hops_.take_time())) {
      timeline_.ranks[rank].communications.reserve(2 * actions);
    }
    turns_.push_back(static_cast<int32_t>(states_.size() - 1 - rank));
  }
}

absl::Status Simulation::Run() {
  while (!turns_.empty()) {
    const int32_t rank = turns_.back();
    turns_.pop_back();
    State(rank).has_turn = false;
    while (Step(rank)) {
    }
  }
  if (absl::Status status = CheckComplete(); !status.ok()) return status;
  Finish();
  return absl::OkStatus();
}

void Simulation::Wake(int32_t rank) {
  RankState& state = State(rank);
  if (state.has_turn) return;
  state.has_turn = true;
  turns_.push_back(rank);
}

bool Simulation::WaitsFor(const Hop& hop, int32_t microbatch) const {
  const auto receiver = static_cast<size_t>(hop.receiver);
  const auto& actions = schedule_.ranks[receiver];
  const size_t next = states_[receiver].next;
  return next < actions.size() && Computes(actions[next].kind) &&
         actions[next].stage == hop.target &&
         actions[next].microbatch == microbatch;
}

bool Simulation::Step(int32_t rank) {
  RankState& state = State(rank);
  const auto& actions = schedule_.ranks[static_cast<size_t>(rank)];
  if (state.next == actions.size()) return false;
  const Action& action = actions[state.next];
  if (Computes(action.kind)) {
    if (!Compute(rank, action)) return false;
  } else if (HasMicroBatch(action.kind)) {
    return Communicate(rank);
  } else {
    const TimeSpan span = state.parameters.Do(action, CostsOf(action.stage),
                                              state.clock, state.memory);
    Record(rank, {action, span.begin, span.end});
  }
  ++state.next;
  return true;
}

bool Simulation::Compute(int32_t rank, const Action& action) {
  const double ready = results_.ReadyFor(action);
  if (ready == kNever) return false;
  RankState& state = State(rank);
  const StageCosts& costs = CostsOf(action.stage);
  double begin = std::max(ready, state.clock);
  if (contents_.parameters) {
    begin = std::max(begin, state.parameters.GatheredAt(action.stage));
  }
  const double time = costs.TimeOf(action.kind);
  const double end = begin + time;
  RankTimeline& line = Line(rank);
  line.computations.push_back({action, begin, end});
  line.busy += time;
  if (contents_.parameters && GivesWeightGradient(action.kind)) {
    state.parameters.AddGradient(action.stage, costs, begin, state.memory);
  }
  Hold(rank, action, begin, end);
  state.clock = end;
  results_.Done(action, end);
  if (action.kind != ActionKind::kBackwardWeight) HandOn(rank, action, end);
  return true;
}

void Simulation::Hold(int32_t rank, const Action& action, double begin,
                      double end) {
  RankState& state = State(rank);
  const int64_t bytes = CostsOf(action.stage).BytesOf(action.kind);
  state.memory.Change(bytes > 0 ? begin : end, bytes);
  if (action.kind == ActionKind::kForward) {
    int64_t& peak = Line(rank).peak_activations;
    peak = std::max(peak, ++state.activations);
  } else if (GivesWeightGradient(action.kind)) {
    --state.activations;
  }
}

void Simulation::HandOn(int32_t rank, const Action& action, double end) {
  const PassDirection direction = DirectionOf(action.kind);
  const Hop& hop = hops_.Of(direction, action.stage, action.microbatch);
  if (hop.target == kNoStage) return;
  if (!hop.travels()) {
    results_.Arrived(direction, hop.target, action.microbatch, end);
    return;
  }
  if (messages_ != Messages::kImplied) return;  // Until its SEND.
  const TimeSpan span = wire_.Carry(hop, end);
  if (!costs_.overlap_communication) State(rank).clock = span.end;
  Arrive(hop, {SendOf(direction), action.stage, action.microbatch}, span,
         /*record=*/span.end > end);
}

bool Simulation::Communicate(int32_t rank) {
  const std::span<const Action> unit = MessagesAt(rank);
  for (const Action& action : unit) {
    if (Sends(action.kind) &&
        results_.Sendable(DirectionOf(action.kind), action.stage,
                          action.microbatch) == kNever) {
      return false;
    }
  }
  if (messages_ == Messages::kRendezvous) return Exchange(rank, unit);
  for (const Action& action : unit) {
    if (Receives(action.kind)) continue;
    const Hop& hop =
        hops_.Of(DirectionOf(action.kind), action.stage, action.microbatch);
    Arrive(hop, action, wire_.Carry(hop, State(rank).clock));
  }
  State(rank).next += unit.size();
  return true;
}

std::span<const Action> Simulation::MessagesAt(int32_t rank) const {
  const auto index = static_cast<size_t>(rank);
  const auto& actions = schedule_.ranks[index];
  const size_t at = states_[index].next;
  const bool both = actions[at].with_next && at + 1 < actions.size() &&
                    Communicates(actions[at + 1].kind);
  return std::span(actions).subspan(at, both ? 2 : 1);
}

Action Simulation::SendFor(const Action& action) const {
  if (Sends(action.kind)) return action;
  const PassDirection direction = DirectionOf(action.kind);
  return {SendOf(direction), SourceOf(schedule_, direction, action.stage),
          action.microbatch};
}

bool Simulation::Exchange(int32_t rank, std::span<const Action> unit) {
  RankState& state = State(rank);
  if (!state.exchanges) {
    state.exchanges = true;
    state.open = unit.size();
    const double now = state.clock;
    for (const Action& action : unit) {
      const Action send = SendFor(action);
      const std::optional<double> both =
          meetings_->Meet(send, Sends(action.kind), now);
      if (both) GetThrough(send, *both);
    }
  }
  if (state.open > 0) return false;
  state.exchanges = false;
  state.next += unit.size();
  return true;
}

void Simulation::GetThrough(const Action& send, double ready) {
  const Hop& hop =
      hops_.Of(DirectionOf(send.kind), send.stage, send.microbatch);
  const TimeSpan span = wire_.Carry(hop, ready);
  for (const int32_t rank : {hop.sender, hop.receiver}) {
    RankState& state = State(rank);
    state.clock = std::max(state.clock, span.end);
    if (--state.open == 0) Wake(rank);
  }
  Arrive(hop, send, span);
}

void Simulation::Arrive(const Hop& hop, const Action& send,
                        const TimeSpan& span, bool record) {
  const PassDirection direction = DirectionOf(send.kind);
  results_.Arrived(direction, hop.target, send.microbatch, span.end);
  if (WaitsFor(hop, send.microbatch)) Wake(hop.receiver);
  if (!traces_ || !record) return;
  Record(hop.sender, {send, span.begin, span.end});
  Record(hop.receiver, {{ReceiveOf(direction), hop.target, send.microbatch},
                        span.begin,
                        span.end});
}

absl::Status Simulation::CheckComplete() const {
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    const RankState& state = states_[rank];
    size_t at = state.next;
    if (at == schedule_.ranks[rank].size()) continue;
    if (state.exchanges) {
      // The first message may have been transferred, and the second not.
      const Action& first = schedule_.ranks[rank][at];
      at += meetings_->Waits(SendFor(first), Sends(first.kind)) ? 0 : 1;
    }
    return WaitsForEver(schedule_,
                        {static_cast<int32_t>(rank), static_cast<int32_t>(at)},
                        results_, messages_);
  }
  return absl::OkStatus();
}

void Simulation::Finish() {
  std::vector<double> ready;
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    RankState& state = states_[rank];
    RankTimeline& line = timeline_.ranks[rank];
    const auto earlier = [](const TimedAction& a, const TimedAction& b) {
      return a.begin < b.begin;
    };
    std::vector<TimedAction>& others = line.communications;
    if (!std::is_sorted(others.begin(), others.end(), earlier)) {
      std::stable_sort(others.begin(), others.end(), earlier);
    }
    state.memory.Finish(line);
    if (!traces_) line.memory.clear();
    ready.push_back(std::max(state.clock, state.parameters.free_at()));
    timeline_.longest_stage =
        std::max(timeline_.longest_stage, line.last() - line.first());
  }
  StepOptimizer(schedule_, costs_, ready, timeline_);
  timeline_.makespan = std::max(*std::max_element(ready.begin(), ready.end()),
                                timeline_.synchronisation.end);
  for (const RankTimeline& line : timeline_.ranks) {
    timeline_.makespan = std::max(timeline_.makespan, line.optimizer.end);
  }
}

}  // namespace tessera::pipeline
