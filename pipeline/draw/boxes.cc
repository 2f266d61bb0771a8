#include "pipeline/draw/boxes.h"

#include <algorithm>

namespace tessera::pipeline {

std::vector<Box> BoxesOf(std::span<const TimedAction> actions, double least) {
  std::vector<Box> boxes;
  bool is_open = false;  // Whether the last box is a run that may grow.
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto [action, begin, end] = actions[i];
    const bool is_narrow = end - begin < least;
    if (is_open && is_narrow && begin - boxes.back().end < least) {
      boxes.back().end = std::max(boxes.back().end, end);
      ++boxes.back().count;
    } else {
      boxes.push_back({begin, end, i, 1});
    }
    is_open = is_narrow && boxes.back().end - boxes.back().begin < least;
  }
  return boxes;
}

}  // namespace tessera::pipeline
