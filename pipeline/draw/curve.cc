#include "pipeline/draw/curve.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::pipeline {
namespace {

Curve HeldBy(const RankTimeline& rank) {
  // Changes by one, in the order of time; what ends goes before what begins.
  std::vector<std::pair<double, int64_t>> changes;
  for (const TimedAction& timed : rank.computations) {
    if (timed.action.kind == ActionKind::kForward) {
      changes.emplace_back(timed.begin, 1);
    } else if (GivesWeightGradient(timed.action.kind)) {
      changes.emplace_back(timed.end, -1);
    }
  }
  std::sort(changes.begin(), changes.end());
  Curve curve;
  int64_t held = 0;
  for (const auto& [time, change] : changes) {
    held += change;
    curve.push_back({time, held});
  }
  return curve;
}

// Of several changes at one time only the last.
Curve Settled(const Curve& curve) {
  Curve settled;
  for (const MemoryChange& change : curve) {
    if (!settled.empty() && settled.back().time == change.time) {
      settled.pop_back();
    }
    settled.push_back(change);
  }
  return settled;
}

// Adds the change unless the curve is there already.
void Append(Curve& curve, double time, int64_t bytes) {
  if (curve.empty() || curve.back().bytes != bytes) {
    curve.push_back({time, bytes});
  }
}

}  // namespace

Curves CurvesOf(const Timeline& timeline) {
  Curves curves;
  for (const RankTimeline& rank : timeline.ranks) {
    curves.are_bytes |= !rank.memory.empty();
  }
  for (const RankTimeline& rank : timeline.ranks) {
    curves.ranks.push_back(
        Settled(curves.are_bytes ? rank.memory : HeldBy(rank)));
    for (const MemoryChange& change : curves.ranks.back()) {
      curves.peak = std::max(curves.peak, change.bytes);
    }
  }
  return curves;
}

Curve Thinned(const Curve& curve, double step) {
  if (!(step > 0)) return curve;
  Curve thinned;
  for (size_t i = 0; i < curve.size();) {
    const double interval = std::floor(curve[i].time / step);
    size_t end = i;
    size_t most = i;
    for (; end < curve.size() && std::floor(curve[end].time / step) == interval;
         ++end) {
      if (curve[end].bytes > curve[most].bytes) most = end;
    }
    for (const size_t kept : {i, most, end - 1}) {
      Append(thinned, curve[kept].time, curve[kept].bytes);
    }
    i = end;
  }
  return thinned;
}

}  // namespace tessera::pipeline
