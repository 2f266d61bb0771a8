#include "pipeline/synthesize/sequential.h"

#include <algorithm>

namespace tessera::pipeline::synthesis {

Order SequentialOrder(const Model& model) {
  Order order(model.ranks());
  const auto add = [&](int32_t lane, Pass pass) {
    order[static_cast<size_t>(model.lane(lane).rank)].push_back({lane, pass});
  };
  const auto lanes = static_cast<int32_t>(model.lanes.size());
  for (int32_t turn = 0; turn < model.most_microbatches; ++turn) {
    for (int32_t first = 0; first < lanes; ++first) {
      if (model.lane(first).before != kNoLane) continue;
      if (turn >= model.lane(first).count) continue;
      int32_t last = first;
      for (int32_t l = first; l != kNoLane; l = model.lane(l).after) {
        add(l, Pass::kForward);
        last = l;
      }
      for (int32_t l = last; l != kNoLane; l = model.lane(l).before) {
        add(l, Pass::kInput);
        add(l, Pass::kWeight);
      }
    }
  }
  return order;
}

MemoryNeed LeastMemory(const Model& model) {
  MemoryNeed most;
  const Order order = SequentialOrder(model);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    int64_t held = 0;
    for (const Op op : order[rank]) {
      const Lane& lane = model.lane(op.lane);
      const int64_t bytes = op.pass == Pass::kForward ? lane.forward_bytes
                            : op.pass == Pass::kInput ? lane.input_bytes
                                                      : lane.weight_bytes;
      held += bytes;
      const int64_t peak = bytes > 0 ? held : held - bytes;
      if (peak > most.bytes) most = {static_cast<int64_t>(rank), peak};
    }
  }
  return most;
}

}  // namespace tessera::pipeline::synthesis
