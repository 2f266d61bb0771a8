#include "pipeline/simulate/testing/longest_path.h"

#include <algorithm>

namespace tessera::pipeline {
namespace {

using enum ActionKind;

constexpr int kNone = -1;

bool IsForward(ActionKind kind) {
  return kind == kForward || kind == kSendForward || kind == kReceiveForward;
}

}  // namespace

LongestPath::LongestPath(const Schedule& schedule, const Costs& costs)
    : schedule_(schedule), costs_(costs), last_(schedule.ranks.size()) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto& actions = schedule.ranks[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& a = actions[i];
      lowered_ |= Communicates(a.kind);
      if (Communicates(a.kind)) continue;
      const int node =
          Add(costs.stages[static_cast<size_t>(a.stage)].TimeOf(a.kind));
      place_[{rank, i}] = node;
      if (a.kind == kForward || GivesInputGradient(a.kind)) {
        producers_[{a.kind == kForward, a.stage, a.microbatch}] = node;
      }
    }
  }
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) AddRank(rank);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) AddInputs(rank);
  AddLinks();
  AddOptimizer();
  Solve();
}

int LongestPath::Add(double time, double wire) {
  nodes_.push_back({time, wire, 0});
  return static_cast<int>(nodes_.size()) - 1;
}

void LongestPath::Join(int from, int to, bool by_wire) {
  if (from != kNone && to != kNone) edges_.push_back({from, to, by_wire});
}

// No message between stages of one rank, or beyond the ends.
int LongestPath::MessageOf(bool forward, int32_t source, int32_t microbatch) {
  const int32_t target = source + (forward ? 1 : -1);
  if (target < 0 || target >= schedule_.map.stages()) return kNone;
  const int32_t from = schedule_.RankOf(source, microbatch);
  const int32_t to = schedule_.RankOf(target, microbatch);
  if (from == to) return kNone;
  const auto [entry, added] =
      messages_.try_emplace({forward, source, microbatch}, 0);
  if (!added) return entry->second;
  const StageCosts& stage = costs_.stages[static_cast<size_t>(source)];
  const Link& link = costs_.links.Of(from, to);
  const double wire = static_cast<double>(forward ? stage.activation_bytes
                                                  : stage.gradient_bytes) /
                      link.bandwidth;
  return entry->second = Add(wire + link.latency + stage.communication, wire);
}

// The order of a rank's list.
void LongestPath::AddRank(size_t rank) {
  const auto& actions = schedule_.ranks[rank];
  std::vector<int> last;  // Two after an exchange.
  int stream = kNone;
  const auto after_last = [&](int node) {
    for (const int before : last) Join(before, node);
  };
  std::map<int32_t, int> gathered;
  const auto queue = [&](bool forward, const Action& a, int message) {
    on_link_[{schedule_.RankOf(a.stage, a.microbatch),
              schedule_.RankOf(a.stage + (forward ? 1 : -1), a.microbatch)}]
        .push_back(message);
  };
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& a = actions[i];
    const bool forward = IsForward(a.kind);
    if (Computes(a.kind)) {
      const int node = place_[{rank, i}];
      after_last(node);
      last = {node};
      if (gathered.count(a.stage)) Join(gathered[a.stage], node);
      if (lowered_ || a.kind == kBackwardWeight) continue;
      const int message = MessageOf(forward, a.stage, a.microbatch);
      if (message == kNone) continue;
      Join(node, message);
      queue(forward, a, message);
      if (!costs_.overlap_communication) last = {message};
    } else if (Communicates(a.kind)) {
      std::vector<int> messages;
      for (size_t end = i + (a.with_next ? 2 : 1); i < end; ++i) {
        const Action& one = actions[i];
        const bool sends = Sends(one.kind);
        const bool onward = IsForward(one.kind);
        const int32_t source =
            sends ? one.stage : one.stage + (onward ? -1 : 1);
        const int message = MessageOf(onward, source, one.microbatch);
        if (sends) queue(onward, one, message);
        if (sends || !costs_.overlap_communication) after_last(message);
        messages.push_back(message);
      }
      --i;
      if (!costs_.overlap_communication) last = messages;
    } else {
      const int node = place_[{rank, i}];
      after_last(node);
      if (a.kind == kReshard) {
        gathered.erase(a.stage);
        continue;
      }
      Join(stream, node);
      stream = node;
      if (a.kind == kUnshard) gathered[a.stage] = node;
    }
  }
  last.push_back(stream);
  last_[rank] = last;
}

void LongestPath::AddInputs(size_t rank) {
  const auto& actions = schedule_.ranks[rank];
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& a = actions[i];
    if (a.kind != kForward && !GivesInputGradient(a.kind)) continue;
    const bool forward = a.kind == kForward;
    const int32_t source = a.stage + (forward ? -1 : 1);
    if (source < 0 || source >= schedule_.map.stages()) continue;
    const int message = MessageOf(forward, source, a.microbatch);
    const int producer = producers_.at({forward, source, a.microbatch});
    Join(message == kNone ? producer : message, place_[{rank, i}]);
  }
}

void LongestPath::AddLinks() {
  for (const auto& [ends, queue] : on_link_) {
    for (size_t i = 1; i < queue.size(); ++i) {
      Join(queue[i - 1], queue[i], /*by_wire=*/true);
    }
  }
}

void LongestPath::AddOptimizer() {
  const int together =
      costs_.synchronise_optimizer ? Add(costs_.synchronisation) : kNone;
  for (size_t rank = 0; rank < last_.size(); ++rank) {
    double time = 0;
    for (const int32_t stage :
         schedule_.map.StagesOf(static_cast<int32_t>(rank))) {
      time += costs_.stages[static_cast<size_t>(stage)].optimizer;
    }
    const int step = Add(time);
    for (const int node : last_[rank]) {
      Join(node, together);
      Join(node, step);
    }
    Join(together, step);
  }
}

void LongestPath::Solve() {
  for (Node& node : nodes_) node.begin = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Edge& edge : edges_) {
      const Node& from = nodes_[static_cast<size_t>(edge.from)];
      Node& to = nodes_[static_cast<size_t>(edge.to)];
      const double ready = from.begin + (edge.by_wire ? from.wire : from.time);
      if (ready <= to.begin) continue;
      to.begin = ready;
      changed = true;
    }
  }
  makespan_ = 0;
  for (const Node& node : nodes_) {
    makespan_ = std::max(makespan_, node.begin + node.time);
  }
}

void LongestPath::Stretch(size_t rank, size_t position, double by) {
  nodes_[static_cast<size_t>(place_.at({rank, position}))].time += by;
  Solve();
}

}  // namespace tessera::pipeline
