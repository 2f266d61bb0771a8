#include "pipeline/synthesize/order.h"

#include <array>
#include <string>

namespace tessera::pipeline::synthesis {
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
      // Lanes of the second direction lie behind those of the first.
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
