// For tests: random orders.
#ifndef TESSERA_PIPELINE_SYNTHESIZE_TESTING_RANDOM_ORDER_H_
#define TESSERA_PIPELINE_SYNTHESIZE_TESTING_RANDOM_ORDER_H_

#include <cstddef>
#include <random>
#include <vector>

#include "pipeline/synthesize/model.h"

namespace tessera::pipeline::synthesis {

// A valid order, ignoring memory: repeatedly picks any action that can be next.
inline Order RandomOrder(const Model& model, std::mt19937_64& random) {
  struct Done {
    int32_t passes[3] = {0, 0, 0};
  };
  std::vector<Done> done(model.lanes.size());
  Order order(model.ranks());
  while (true) {
    std::vector<Op> ready;
    for (int32_t l = 0; l < static_cast<int32_t>(model.lanes.size()); ++l) {
      const Lane& lane = model.lane(l);
      const auto& [forward, input, weight] =
          done[static_cast<size_t>(l)].passes;
      const auto passes = [&](int32_t from, int pass) {
        return from == kNoLane ? lane.count
                               : done[static_cast<size_t>(from)].passes[pass];
      };
      if (forward < passes(lane.before, 0))
        ready.push_back({l, Pass::kForward});
      if (input < forward && input < passes(lane.after, 1)) {
        ready.push_back({l, Pass::kInput});
      }
      if (weight < input) ready.push_back({l, Pass::kWeight});
    }
    if (ready.empty()) return order;
    const Op op = ready[random() % ready.size()];
    order[static_cast<size_t>(model.lane(op.lane).rank)].push_back(op);
    ++done[static_cast<size_t>(op.lane)].passes[static_cast<size_t>(op.pass)];
  }
}

// A map for the ranks and chunks, of any kind.
inline StageMap RandomMap(int64_t ranks, int64_t chunks,
                          std::mt19937_64& random) {
  if (chunks == 1 && random() % 2 == 0) return *StageMap::TwoWay(ranks);
  return random() % 2 == 0 ? *StageMap::Zigzag(ranks, chunks)
                           : *StageMap::Loop(ranks, chunks);
}

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_TESTING_RANDOM_ORDER_H_
