// Model: a synthesis problem in the form of the search, with the orders of its
// actions and the ways to place them.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_MODEL_H_
#define TESSERA_PIPELINE_SYNTHESIZE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"

namespace tessera::pipeline::synthesis {

// The model orders lanes without names of actions.
//
//   const Model model = MakeModel(map, microbatches, costs, memory_limit);
//   for (const Lane& lane : model.lanes) ...
//
// A lane is a stage on a rank for the micro-batches that come one way: a stage,
// or in a two-way map a stage and a direction. All micro-batches of a lane are
// alike, so that an order only says which lane's forward, backward-input or
// backward-weight comes next: the n-th is that of the lane's n-th micro-batch.
// Nothing is lost by that. Take any schedule with its times and let the n-th
// action of a kind in time, in each lane, be that of the n-th micro-batch. When
// the n-th forward begins, n forwards of the lane before have ended: the first
// n. The same holds for backward-inputs and the lane after, and for what a lane
// needs of itself. Times, and memory over time, stay what they were.

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
  // the lane before: 0 if that is on the same rank.
  double forward_delay = 0;
  double input_delay = 0;
  // The bytes that the forward adds, and those left after it, after the
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

// `costs` are checked (CheckCosts) and microbatches is at least 1. Messages
// overlap with computations and do not wait for each other, and there is no
// optimizer, so Simulate never gives a shorter time than the model.
Model MakeModel(const StageMap& map, int64_t microbatches, const Costs& costs,
                int64_t memory_limit);

// The least times between the actions of a micro-batch in the lanes of a
// direction.
//
//   const Ways ways(model);
//   ways.Turn(0, 0);     // from F to I of stage 0: to the end and back
class Ways {
 public:
  explicit Ways(const Model& model)
      : model_(model), down_(model.lanes.size()), up_(model.lanes.size()) {
    for (size_t l = 0; l < model.lanes.size(); ++l) {
      const int32_t before = model.lanes[l].before;
      if (before == kNoLane) continue;
      const auto b = static_cast<size_t>(before);
      down_[l] =
          down_[b] + model.lanes[b].forward + model.lanes[b].forward_delay;
      up_[l] = up_[b] + model.lanes[b].input + model.lanes[l].input_delay;
    }
  }

  // From the begin of F in `from` to that in `to`.
  double Down(int32_t from, int32_t to) const {
    return down_[At(to)] - down_[At(from)];
  }
  // From the end of I in `from` to that in `to`, before it.
  double Up(int32_t from, int32_t to) const {
    return up_[At(from)] - up_[At(to)];
  }
  // Both, between the direction's first lane and this.
  double Aside(int32_t lane) const { return down_[At(lane)] + up_[At(lane)]; }
  // From the begin of F in `from` to the begin of I in `to`.
  double Turn(int32_t from, int32_t to) const {
    int32_t last = static_cast<int32_t>(model_.lanes.size()) - 1;
    while (model_.lane(last).first_microbatch !=
           model_.lane(from).first_microbatch) {
      --last;
    }
    return Down(from, last) + model_.lane(last).forward +
           model_.lane(last).input + Up(last, to) - model_.lane(to).input;
  }

 private:
  static size_t At(int32_t lane) { return static_cast<size_t>(lane); }

  const Model& model_;
  std::vector<double> down_;
  std::vector<double> up_;
};

// The order of each rank's actions, in terms of a Model.
//
//   Order order = OrderOf(model, *Generate("zb_h1", shape));
//   Schedule schedule = ScheduleOf(model, map, m, order, "auto");
enum class Pass : uint8_t { kForward, kInput, kWeight };

struct Op {
  int32_t lane = 0;
  Pass pass = Pass::kForward;

  friend bool operator==(const Op&, const Op&) = default;
};

// By rank.
using Order = std::vector<std::vector<Op>>;

// The order of a valid schedule of computations on the model's map. Every
// backward is split, and a lane's micro-batches take their turns.
Order OrderOf(const Model& model, const Schedule& schedule);

// The schedule of an order.
Schedule ScheduleOf(const Model& model, const StageMap& map,
                    int64_t microbatches, const Order& order,
                    std::string_view name);

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_MODEL_H_
