#include "pipeline/synthesize/model.h"

#include <array>
#include <string>

#include "pipeline/simulate/costs.h"

namespace tessera::pipeline::synthesis {

namespace {

// The time of a message that does not wait for others.
double Delay(const Costs& costs, const StageCosts& cost, int64_t bytes,
             int32_t from, int32_t to) {
  if (from == to) return 0;
  const Link& link = costs.links.Of(from, to);
  return cost.communication + link.latency +
         static_cast<double>(bytes) / link.bandwidth;
}

// Adds the lanes of a direction.
template <typename RankOf>
void AddDirection(const Costs& costs, int32_t first, int32_t count,
                  RankOf rank_of, Model& model) {
  if (count == 0) return;
  const auto stages = static_cast<int32_t>(costs.stages.size());
  const auto base = static_cast<int32_t>(model.lanes.size());
  for (int32_t stage = 0; stage < stages; ++stage) {
    const StageCosts& cost = costs.stages[static_cast<size_t>(stage)];
    Lane lane{.stage = stage,
              .rank = rank_of(stage),
              .first_microbatch = first,
              .count = count,
              .forward = cost.forward,
              .input = cost.backward_input,
              .weight = cost.backward_weight,
              .forward_bytes = cost.forward_bytes,
              .input_bytes = cost.backward_input_bytes,
              .weight_bytes = cost.backward_weight_bytes};
    if (stage > 0) {
      lane.before = base + stage - 1;
      lane.input_delay = Delay(costs, cost, cost.gradient_bytes, lane.rank,
                               rank_of(stage - 1));
    }
    if (stage + 1 < stages) {
      lane.after = base + stage + 1;
      lane.forward_delay = Delay(costs, cost, cost.activation_bytes, lane.rank,
                                 rank_of(stage + 1));
    }
    model.lanes_of_rank[static_cast<size_t>(lane.rank)].push_back(base + stage);
    model.lanes.push_back(lane);
    model.actions += 3 * int64_t{count};
  }
}

}  // namespace

double Model::WorkOf(size_t rank) const {
  double work = 0;
  for (const int32_t index : lanes_of_rank[rank]) {
    work += lane(index).count * lane(index).work();
  }
  return work;
}

Model MakeModel(const StageMap& map, int64_t microbatches, const Costs& costs,
                int64_t memory_limit) {
  Model model;
  model.lanes_of_rank.resize(static_cast<size_t>(map.ranks()));
  model.memory_limit = memory_limit;
  const auto m = static_cast<int32_t>(microbatches);
  // Like Schedule::EntersAtFront.
  const int32_t front = map.two_way() ? m - m / 2 : m;
  model.most_microbatches = front;
  AddDirection(
      costs, 0, front, [&map](int32_t stage) { return map.RankOf(stage); },
      model);
  AddDirection(
      costs, front, m - front,
      [&map](int32_t stage) { return map.RankFromBack(stage); }, model);
  return model;
}

namespace {

constexpr ActionKind KindOf(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return ActionKind::kForward;
    case Pass::kInput:
      return ActionKind::kBackwardInput;
    default:
      return ActionKind::kBackwardWeight;
  }
}

}  // namespace

Order OrderOf(const Model& model, const Schedule& schedule) {
  const auto stages = static_cast<int32_t>(schedule.map.stages());
  Order order(model.ranks());
  for (size_t rank = 0; rank < order.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      if (!Computes(action.kind)) continue;
      // Lanes of the second direction follow those of the first.
      const int32_t lane = schedule.EntersAtFront(action.microbatch)
                               ? action.stage
                               : stages + action.stage;
      const auto add = [&](Pass pass) { order[rank].push_back({lane, pass}); };
      if (action.kind == ActionKind::kForward) add(Pass::kForward);
      if (GivesInputGradient(action.kind)) add(Pass::kInput);
      if (GivesWeightGradient(action.kind)) add(Pass::kWeight);
    }
  }
  return order;
}

Schedule ScheduleOf(const Model& model, const StageMap& map,
                    int64_t microbatches, const Order& order,
                    std::string_view name) {
  Schedule schedule{.name = std::string(name),
                    .map = map,
                    .microbatches = static_cast<int32_t>(microbatches),
                    .ranks = {}};
  std::vector<std::array<int32_t, 3>> turns(model.lanes.size());
  for (const auto& ops : order) {
    auto& actions = schedule.ranks.emplace_back();
    actions.reserve(ops.size());
    for (const Op op : ops) {
      const Lane& lane = model.lane(op.lane);
      int32_t& turn =
          turns[static_cast<size_t>(op.lane)][static_cast<size_t>(op.pass)];
      actions.push_back(
          {KindOf(op.pass), lane.stage, lane.first_microbatch + turn++});
    }
  }
  return schedule;
}

}  // namespace tessera::pipeline::synthesis
