#include "pipeline/simulate/timeline.h"

#include <algorithm>

namespace tessera::pipeline {

double Timeline::BubbleRate(int32_t rank) const {
  if (longest_stage <= 0) return 0;
  return 1 - ranks[static_cast<size_t>(rank)].busy / longest_stage;
}

double Timeline::BubbleRate() const {
  double least = 1;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    least = std::min(least, BubbleRate(static_cast<int32_t>(rank)));
  }
  return least;
}

}  // namespace tessera::pipeline
