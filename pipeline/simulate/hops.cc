#include "pipeline/simulate/hops.h"

#include <cmath>
#include <map>
#include <utility>

namespace tessera::pipeline {
namespace {

// Numbers the pairs of ranks whose messages queue.
class LinkNumbers {
 public:
  int32_t Of(int32_t sender, int32_t receiver) {
    const auto next = static_cast<int32_t>(numbers_.size());
    return numbers_.try_emplace({sender, receiver}, next).first->second;
  }
  size_t size() const { return numbers_.size(); }

 private:
  std::map<std::pair<int32_t, int32_t>, int32_t> numbers_;
};

void Time(Hop& hop, Direction direction, int32_t stage, const Costs& costs,
          LinkNumbers& numbers) {
  const Link& link = costs.links.Of(hop.sender, hop.receiver);
  const StageCosts& cost = costs.stages[static_cast<size_t>(stage)];
  const int64_t bytes = direction == Direction::kForward ? cost.activation_bytes
                                                         : cost.gradient_bytes;
  hop.wire = static_cast<double>(bytes) / link.bandwidth;
  hop.total = hop.wire + (link.latency + cost.communication);
  if (std::isfinite(link.bandwidth)) {
    hop.link = numbers.Of(hop.sender, hop.receiver);
  }
}

}  // namespace

Hops::Hops(const Schedule& schedule, const Costs& costs) : schedule_(schedule) {
  const StageMap& map = schedule.map;
  hops_.resize(static_cast<size_t>(map.stages()) * 4);
  LinkNumbers numbers;
  for (int32_t stage = 0; stage < map.stages(); ++stage) {
    for (const Direction direction :
         {Direction::kForward, Direction::kBackward}) {
      const int32_t target = TargetOf(schedule, direction, stage);
      if (target == kNoStage) continue;
      for (const bool back : {false, true}) {
        Hop& hop = hops_[Index(direction, stage, back)];
        hop.target = target;
        hop.sender = back ? map.RankFromBack(stage) : map.RankOf(stage);
        hop.receiver = back ? map.RankFromBack(target) : map.RankOf(target);
        if (hop.travels()) Time(hop, direction, stage, costs, numbers);
        take_time_ = take_time_ || hop.total > 0;
      }
    }
  }
  links_ = numbers.size();
}

}  // namespace tessera::pipeline
