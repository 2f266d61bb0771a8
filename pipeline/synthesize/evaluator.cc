#include "pipeline/synthesize/evaluator.h"

#include <algorithm>

namespace tessera::pipeline::synthesis {

Evaluator::Evaluator(const Model& model)
    : model_(model),
      turns_(static_cast<size_t>(model.most_microbatches)),
      results_(model.lanes.size() * 2 * turns_),
      lanes_(model.lanes.size()),
      ranks_(model.ranks()),
      times_(model.ranks()) {}

void Evaluator::Reset(const Order& order) {
  std::fill(results_.begin(), results_.end(), Result{});
  std::fill(lanes_.begin(), lanes_.end(), Turns{});
  std::fill(ranks_.begin(), ranks_.end(), RankState{});
  awake_.clear();
  for (size_t rank = order.size(); rank-- > 0;) {
    times_[rank].resize(order[rank].size());
    awake_.push_back(static_cast<int32_t>(rank));
  }
}

Evaluation Evaluator::Evaluate(const Order& order) {
  Reset(order);
  while (!awake_.empty()) {
    const int32_t rank = awake_.back();
    awake_.pop_back();
    if (!Advance(rank, order[static_cast<size_t>(rank)])) return {};
  }
  Evaluation evaluation{.valid = true};
  for (size_t rank = 0; rank < order.size(); ++rank) {
    if (ranks_[rank].next < order[rank].size()) return {};
    if (order[rank].empty()) continue;
    const double end = times_[rank].back().end;
    evaluation.makespan = std::max(evaluation.makespan, end);
    evaluation.longest_stage =
        std::max(evaluation.longest_stage, end - times_[rank].front().begin);
  }
  return evaluation;
}

// Executes actions until the rank waits. Returns false if it exceeds the memory
// limit.
bool Evaluator::Advance(int32_t rank, const std::vector<Op>& ops) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  state.awaited.lane = kNoLane;
  while (state.next < ops.size()) {
    const Op op = ops[state.next];
    if (!Begin(rank, op)) break;
    const Lane& lane = model_.lane(op.lane);
    const int64_t bytes = op.pass == Pass::kForward ? lane.forward_bytes
                          : op.pass == Pass::kInput ? lane.input_bytes
                                                    : lane.weight_bytes;
    if (!model_.Fits(state.held + std::max<int64_t>(bytes, 0))) return false;
    state.held += bytes;
    ++state.next;
  }
  return true;
}

// Sets the times of the action, if its inputs are ready.
bool Evaluator::Begin(int32_t rank, Op op) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  const Lane& lane = model_.lane(op.lane);
  auto& done = lanes_[static_cast<size_t>(op.lane)].done;
  int32_t& turn = done[static_cast<size_t>(op.pass)];
  double ready = state.free;
  double time = lane.forward;
  if (op.pass == Pass::kForward) {
    if (lane.before != kNoLane &&
        !Await(state, lane.before, Pass::kForward, turn,
               model_.lane(lane.before).forward_delay, ready)) {
      return false;
    }
  } else if (op.pass == Pass::kInput) {
    if (turn >= done[0]) return false;
    if (lane.after != kNoLane &&
        !Await(state, lane.after, Pass::kInput, turn,
               model_.lane(lane.after).input_delay, ready)) {
      return false;
    }
    time = lane.input;
  } else {
    if (turn >= done[1]) return false;
    time = lane.weight;
  }
  state.free = ready + time;
  times_[static_cast<size_t>(rank)][state.next] = {ready, state.free};
  if (op.pass != Pass::kWeight) {
    ResultOf(op.lane, op.pass, turn) = {
        state.free, {rank, static_cast<int32_t>(state.next)}};
    Wake(op.lane, op.pass, turn);
  }
  ++turn;
  return true;
}

bool Evaluator::Await(RankState& state, int32_t lane, Pass pass, int32_t turn,
                      double delay, double& ready) {
  const double end = ResultOf(lane, pass, turn).end;
  if (end < 0) {
    state.awaited = {lane, pass, turn};
    return false;
  }
  ready = std::max(ready, end + delay);
  return true;
}

// Continues a rank that waits for this result.
void Evaluator::Wake(int32_t lane, Pass pass, int32_t turn) {
  const Lane& from = model_.lane(lane);
  const int32_t to = pass == Pass::kForward ? from.after : from.before;
  if (to == kNoLane) return;
  const int32_t rank = model_.lane(to).rank;
  const Awaited& awaited = ranks_[static_cast<size_t>(rank)].awaited;
  if (awaited.lane != lane || awaited.pass != pass || awaited.turn != turn) {
    return;
  }
  ranks_[static_cast<size_t>(rank)].awaited.lane = kNoLane;
  awake_.push_back(rank);
}

// The action that determined when the one at `place` began: the rank's previous
// action, or the action of another rank whose result it needs.
ActionPosition Evaluator::CameFrom(
    const Order& order, ActionPosition place,
    const std::vector<std::vector<int32_t>>& turn_at) const {
  const auto rank = static_cast<size_t>(place.rank);
  const auto at = static_cast<size_t>(place.position);
  const double begin = times_[rank][at].begin;
  if (at > 0 && times_[rank][at - 1].end >= begin) {
    return {place.rank, place.position - 1};
  }
  const Op op = order[rank][at];
  const Lane& lane = model_.lane(op.lane);
  const int32_t from = op.pass == Pass::kForward ? lane.before
                       : op.pass == Pass::kInput ? lane.after
                                                 : kNoLane;
  if (from == kNoLane) return {place.rank, -1};
  return ResultOf(from, op.pass, turn_at[rank][at]).place;
}

std::vector<ActionPosition> Evaluator::CriticalPath(const Order& order,
                                                    bool of_makespan) const {
  std::vector<std::vector<int32_t>> turn_at(order.size());
  std::vector<Turns> turns(model_.lanes.size());
  ActionPosition place;
  double longest = -1;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    for (const Op op : order[rank]) {
      turn_at[rank].push_back(turns[static_cast<size_t>(op.lane)]
                                  .done[static_cast<size_t>(op.pass)]++);
    }
    if (order[rank].empty()) continue;
    const double begin = of_makespan ? 0 : times_[rank].front().begin;
    const double time = times_[rank].back().end - begin;
    if (time <= longest) continue;
    longest = time;
    place = {static_cast<int32_t>(rank),
             static_cast<int32_t>(order[rank].size()) - 1};
  }
  std::vector<ActionPosition> path;
  while (place.position >= 0) {
    path.push_back(place);
    place = CameFrom(order, place, turn_at);
  }
  return path;
}

}  // namespace tessera::pipeline::synthesis
