#include "pipeline/draw/lanes.h"

#include <functional>
#include <queue>
#include <utility>

namespace tessera::pipeline {
namespace {

template <typename T>
using Smallest = std::priority_queue<T, std::vector<T>, std::greater<T>>;

}  // namespace

std::vector<size_t> LanesOf(std::span<const TimedAction> actions) {
  std::vector<size_t> lane_of;
  lane_of.reserve(actions.size());
  Smallest<std::pair<double, size_t>> taken;  // The end, and the lane.
  Smallest<size_t> free;
  size_t lanes = 0;
  for (const TimedAction& timed : actions) {
    while (!taken.empty() && taken.top().first <= timed.begin) {
      free.push(taken.top().second);
      taken.pop();
    }
    if (free.empty()) free.push(lanes++);
    lane_of.push_back(free.top());
    taken.push({timed.end, free.top()});
    free.pop();
  }
  return lane_of;
}

}  // namespace tessera::pipeline
