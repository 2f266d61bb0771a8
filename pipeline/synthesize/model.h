// A synthesis problem in the form that the search uses (Model), the orders of
// its actions (Order), and the least times between them (Ways).
#ifndef TESSERA_PIPELINE_SYNTHESIZE_MODEL_H_
#define TESSERA_PIPELINE_SYNTHESIZE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"

namespace tessera::pipeline::synthesis {

inline constexpr int32_t kNoLane = -1;

// A lane is a stage on a rank for the micro-batches of one direction: a stage,
// or in a two-way map a stage and a direction. All micro-batches of a lane have
// the same costs, so an order only states which lane's forward, backward-input
// or backward-weight comes next: the n-th one belongs to the lane's n-th
// micro-batch. This loses no generality. In any schedule with its times, assign
// the n-th action of a kind in each lane, by time, to the n-th micro-batch.
// When the n-th forward begins, n forwards of the previous lane have ended: the
// first n. The same holds for backward-inputs and the next lane, and for
// dependencies within a lane. Times, and memory over time, do not change.
struct Lane {
  int32_t stage = 0;
  int32_t rank = 0;
  int32_t first_microbatch = 0;
  int32_t count = 0;         // Number of micro-batches.
  int32_t before = kNoLane;  // The lane whose forward it needs.
  int32_t after = kNoLane;   // The lane whose backward-input it needs.
  double forward = 0;
  double input = 0;
  double weight = 0;
  // The delay from the end of the forward to the next lane, and from the end of
  // the backward-input to the previous lane; 0 on the same rank.
  double forward_delay = 0;
  double input_delay = 0;
  // The bytes that the forward, the backward-input and the backward-weight add
  // (negative: free).
  int64_t forward_bytes = 0;
  int64_t input_bytes = 0;
  int64_t weight_bytes = 0;

  int64_t held_by_forward() const { return forward_bytes; }
  int64_t held_by_input() const { return forward_bytes + input_bytes; }
  int64_t held_at_end() const { return held_by_input() + weight_bytes; }
  double work() const { return forward + input + weight; }
};

// A problem in terms of lanes instead of actions.
//
//   const Model model = MakeModel(map, microbatches, costs, memory_limit);
//   for (const Lane& lane : model.lanes) ...
struct Model {
  std::vector<Lane> lanes;                          // By direction, then stage.
  std::vector<std::vector<int32_t>> lanes_of_rank;  // In the same order.
  int64_t memory_limit = 0;                         // 0: none.
  int64_t actions = 0;
  int32_t most_microbatches = 0;  // The largest Lane::count.

  size_t ranks() const { return lanes_of_rank.size(); }
  const Lane& lane(int32_t index) const {
    return lanes[static_cast<size_t>(index)];
  }
  bool Fits(int64_t bytes) const {
    return memory_limit <= 0 || bytes <= memory_limit;
  }
  // The time of everything that the rank computes.
  double WorkOf(size_t rank) const;
};

// `costs` must have passed CheckCosts, and `microbatches` is at least 1. In the
// model messages overlap with computations and do not wait for each other, and
// there is no optimizer, so Simulate never returns a shorter time than the
// model.
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

  // From the begin of F in `from` to the begin of F in `to`.
  double Down(int32_t from, int32_t to) const {
    return down_[At(to)] - down_[At(from)];
  }
  // From the end of I in `from` to the end of I in `to`, an earlier lane.
  double Up(int32_t from, int32_t to) const {
    return up_[At(from)] - up_[At(to)];
  }
  // The sum of both ways between the direction's first lane and this one.
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

enum class Pass : uint8_t { kForward, kInput, kWeight };

struct Op {
  int32_t lane = 0;
  Pass pass = Pass::kForward;

  friend bool operator==(const Op&, const Op&) = default;
};

// The order of each rank's actions, in terms of a Model; indexed by rank.
//
//   Order order = OrderOf(model, *Generate("zb_h1", shape));
//   Schedule schedule = ScheduleOf(model, map, m, order, "auto");
using Order = std::vector<std::vector<Op>>;

// The order of a valid schedule of computations on the model's map. Splits
// every backward, and processes the micro-batches of each lane in order.
Order OrderOf(const Model& model, const Schedule& schedule);

// The schedule of an order.
Schedule ScheduleOf(const Model& model, const StageMap& map,
                    int64_t microbatches, const Order& order,
                    std::string_view name);

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_MODEL_H_
