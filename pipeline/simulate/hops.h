// Hops: what carries a stage's results to its neighbours, looked up once for
// all messages.
//
//   const Hop& hop = hops.Of(Direction::kForward, stage, microbatch);
//   if (hop.travels()) wire.Carry(hop, ready);
#ifndef TESSERA_PIPELINE_SIMULATE_HOPS_H_
#define TESSERA_PIPELINE_SIMULATE_HOPS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pipeline/proof/place.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

inline constexpr int32_t kNoLink = -1;

struct Hop {
  int32_t target = kNoStage;  // The stage, kNoStage at the pipeline's end.
  int32_t sender = 0;         // The ranks.
  int32_t receiver = 0;
  int32_t link = kNoLink;  // On which messages queue; none where they do not.
  double wire = 0;         // How long the link is taken,
  double total = 0;        // and how long the message is under way.

  bool travels() const { return target != kNoStage && sender != receiver; }
};

class Hops {
 public:
  // Both arguments must be checked; `schedule` must outlive it.
  Hops(const Schedule& schedule, const Costs& costs);

  // From `stage`, for one of the micro-batches.
  const Hop& Of(Direction direction, int32_t stage, int32_t microbatch) const {
    const bool back = !schedule_.EntersAtFront(microbatch);
    return hops_[Index(direction, stage, back)];
  }

  size_t links() const { return links_; }
  // Whether any message takes time.
  bool take_time() const { return take_time_; }

 private:
  static size_t Index(Direction direction, int32_t stage, bool back) {
    return static_cast<size_t>(stage) * 4 +
           (direction == Direction::kBackward ? 2 : 0) + (back ? 1 : 0);
  }

  const Schedule& schedule_;
  std::vector<Hop> hops_;
  size_t links_ = 0;
  bool take_time_ = false;
};

// The links while messages travel.
class Wire {
 public:
  explicit Wire(const Hops& hops) : free_at_(hops.links()) {}

  // When the message travels, and takes its link for it. Of a link's messages
  // the one that is called for first goes first.
  TimeSpan Carry(const Hop& hop, double ready) {
    if (hop.link == kNoLink) return {ready, ready + hop.total};
    double& free_at = free_at_[static_cast<size_t>(hop.link)];
    const double begin = std::max(ready, free_at);
    free_at = begin + hop.wire;
    return {begin, begin + hop.total};
  }

 private:
  std::vector<double> free_at_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_HOPS_H_
