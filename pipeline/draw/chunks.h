// Chunks: the stages that a rank computes, numbered from the first.
//
//   Chunks(rank).Of(5);     // 1, where the rank has stages 1 and 5
#ifndef TESSERA_PIPELINE_DRAW_CHUNKS_H_
#define TESSERA_PIPELINE_DRAW_CHUNKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

class Chunks {
 public:
  explicit Chunks(const RankTimeline& rank) {
    for (const TimedAction& timed : rank.computations) {
      const int32_t stage = timed.action.stage;
      const auto place =
          std::lower_bound(stages_.begin(), stages_.end(), stage);
      if (place == stages_.end() || *place != stage) {
        stages_.insert(place, stage);
      }
    }
  }

  int64_t count() const { return static_cast<int64_t>(stages_.size()); }
  // The number of the rank's stages before this one.
  int64_t Of(int32_t stage) const {
    return std::lower_bound(stages_.begin(), stages_.end(), stage) -
           stages_.begin();
  }

 private:
  std::vector<int32_t> stages_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_CHUNKS_H_
