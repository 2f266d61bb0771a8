#include "pipeline/simulate/transfers.h"

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

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

void Time(Hop& hop, PassDirection direction, int32_t stage, const Costs& costs,
          LinkNumbers& numbers) {
  const Link& link = costs.links.Of(hop.sender, hop.receiver);
  const StageCosts& cost = costs.stages[static_cast<size_t>(stage)];
  const int64_t bytes = direction == PassDirection::kForward
                            ? cost.activation_bytes
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
    for (const PassDirection direction :
         {PassDirection::kForward, PassDirection::kBackward}) {
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

namespace {

Action ComputationOf(PassDirection direction, int32_t stage,
                     int32_t microbatch) {
  return {direction == PassDirection::kForward ? ActionKind::kForward
                                               : ActionKind::kBackward,
          stage, microbatch};
}

// The neighbour's action that produces a computation's input.
Action MissingInput(const Schedule& schedule, PassDirection direction,
                    const Action& action, Messages messages) {
  const int32_t source = SourceOf(schedule, direction, action.stage);
  const int32_t mb = action.microbatch;
  if (messages == Messages::kImplied ||
      schedule.RankOf(source, mb) == schedule.RankOf(action.stage, mb)) {
    return ComputationOf(direction, source, mb);
  }
  if (messages == Messages::kRendezvous) {
    return {ReceiveOf(direction), action.stage, mb};
  }
  return {SendOf(direction), source, mb};
}

Action Missing(const Schedule& schedule, const Action& action,
               const Results& results, Messages messages) {
  const ActionKind kind = action.kind;
  const int32_t stage = action.stage;
  const int32_t mb = action.microbatch;
  const PassDirection direction = DirectionOf(kind);
  const auto computed = [&](PassDirection way) {
    return results.Sendable(way, stage, mb) != kNever;
  };
  if (Receives(kind)) {
    return {SendOf(direction), SourceOf(schedule, direction, stage), mb};
  }
  if (Sends(kind)) {
    if (!computed(direction)) return ComputationOf(direction, stage, mb);
    return {ReceiveOf(direction), TargetOf(schedule, direction, stage), mb};
  }
  if (kind == ActionKind::kBackwardWeight) {
    return {ActionKind::kBackwardInput, stage, mb};
  }
  if (kind != ActionKind::kForward && !computed(PassDirection::kForward)) {
    return {ActionKind::kForward, stage, mb};
  }
  return MissingInput(schedule, direction, action, messages);
}

}  // namespace

absl::Status WaitsForEver(const Schedule& schedule, ActionPosition place,
                          const Results& results, Messages messages) {
  return absl::FailedPreconditionError(absl::StrCat(
      Describe(schedule, place), " waits forever for ",
      Missing(schedule, ActionAt(schedule, place), results, messages)
          .ToString()));
}

}  // namespace tessera::pipeline
