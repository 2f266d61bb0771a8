// Ways: the least times between what happens to a micro-batch in the lanes of a
// direction.
//
//   const Ways ways(model);
//   ways.Turn(0, 0);     // from F to I of stage 0: to the end and back
#ifndef TESSERA_PIPELINE_SYNTHESIZE_WAYS_H_
#define TESSERA_PIPELINE_SYNTHESIZE_WAYS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipeline/synthesize/model.h"

namespace tessera::pipeline::synthesis {

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

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_WAYS_H_
