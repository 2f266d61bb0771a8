#include "pipeline/synthesize/model.h"

#include "pipeline/simulate/links.h"

namespace tessera::pipeline::synthesis {
namespace {

// What a message takes that waits for no other.
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
  // As Schedule::EntersAtFront.
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

}  // namespace tessera::pipeline::synthesis
