// Model: what a synthesiser has to order, without names.
//
//   const Model model = MakeModel(map, microbatches, costs, memory_limit);
//   for (const Lane& lane : model.lanes) ...
//
// A lane is a stage on a rank for the micro-batches that come one way: a stage,
// or in a two-way map a stage and a direction. All micro-batches of a lane are
// alike, so that an order only says which lane's forward, backward-input or
// backward-weight comes next: the n-th is that of the lane's n-th micro-batch.
// Nothing is lost by that. Take any schedule with its times and let the n-th
// action of a kind in time, in each lane, be the n-th micro-batch's. When the
// n-th forward begins, n forwards of the lane before have ended: the first n.
// The same holds for backward-inputs and the lane after, and for what a lane
// needs of itself. Times, and memory over time, stay what they were.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_MODEL_H_
#define TESSERA_PIPELINE_SYNTHESIZE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/schedule/stage_map.h"
#include "pipeline/simulate/costs.h"

namespace tessera::pipeline::synthesis {

inline constexpr int32_t kNoLane = -1;

struct Lane {
  int32_t stage = 0;
  int32_t rank = 0;
  int32_t first_microbatch = 0;
  int32_t count = 0;         // Of micro-batches.
  int32_t before = kNoLane;  // Whose forward it needs,
  int32_t after = kNoLane;   // and whose backward-input.
  double forward = 0;
  double input = 0;
  double weight = 0;
  // From the end of the forward to the lane after, and of the backward-input to
  // the lane before: 0 where that is on the same rank.
  double forward_delay = 0;
  double input_delay = 0;
  // What the forward adds, and what is left after it, after the
  // backward-input and after the backward-weight.
  int64_t forward_bytes = 0;
  int64_t input_bytes = 0;
  int64_t weight_bytes = 0;

  int64_t held_by_forward() const { return forward_bytes; }
  int64_t held_by_input() const { return forward_bytes + input_bytes; }
  int64_t held_at_end() const { return held_by_input() + weight_bytes; }
  double work() const { return forward + input + weight; }
};

struct Model {
  std::vector<Lane> lanes;  // A direction's in the order of stages.
  std::vector<std::vector<int32_t>> lanes_of_rank;  // In the same order.
  int64_t memory_limit = 0;                         // 0: none.
  int64_t actions = 0;
  int32_t most_microbatches = 0;  // Of a lane.

  size_t ranks() const { return lanes_of_rank.size(); }
  const Lane& lane(int32_t index) const {
    return lanes[static_cast<size_t>(index)];
  }
  bool Fits(int64_t bytes) const {
    return memory_limit <= 0 || bytes <= memory_limit;
  }
  // All that the rank computes.
  double WorkOf(size_t rank) const;
};

// `costs` are checked (CheckCosts) and microbatches at least 1. Messages travel
// beside computations and do not wait for each other, and there is no
// optimizer: no schedule is faster by Simulate than by the model.
Model MakeModel(const StageMap& map, int64_t microbatches, const Costs& costs,
                int64_t memory_limit);

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_MODEL_H_
