#include "tools/train/report/step_meter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <vector>

#include "base/status_macros.h"

namespace tessera::train {
namespace {

using pipeline::Action;
using pipeline::ActionKind;

int64_t Nanos(double seconds) {
  return static_cast<int64_t>(std::llround(seconds * 1e9));
}

Span SpanOf(const pipeline::TimedAction& timed, int64_t origin) {
  return {origin + Nanos(timed.begin), origin + Nanos(timed.end)};
}

// What a stage computed of a micro-batch: its output, or the gradient of its
// input.
struct Computed {
  bool is_output = true;
  int32_t stage = 0;
  int32_t microbatch = 0;

  friend auto operator<=>(const Computed&, const Computed&) = default;
};

// When everything that goes from stage to stage was computed, on this rank's
// clock.
class ComputedTimes {
 public:
  ComputedTimes(const pipeline::Timeline& timeline,
                std::span<const int64_t> origins) {
    for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
      for (const auto& timed : timeline.ranks[rank].computations) {
        Add(timed.action, SpanOf(timed, origins[rank]).end);
      }
    }
  }

  // For a receive; 0 for all else.
  int64_t Of(const Action& action) const {
    if (!pipeline::Receives(action.kind)) return 0;
    const bool is_output = action.kind == ActionKind::kReceiveForward;
    const auto found = times_.find(
        {is_output, action.stage + (is_output ? -1 : 1), action.microbatch});
    return found == times_.end() ? 0 : found->second;
  }

  int64_t last() const { return last_; }

 private:
  void Add(const Action& action, int64_t end) {
    last_ = std::max(last_, end);
    if (action.kind == ActionKind::kBackwardWeight) return;
    times_[{action.kind == ActionKind::kForward, action.stage,
            action.microbatch}] = end;
  }

  std::map<Computed, int64_t> times_;
  int64_t last_ = 0;
};

// Where each pipeline rank's timeline begins, on this rank's clock.
absl::StatusOr<std::vector<int64_t>> Origins(collectives::Communicator& group,
                                             int64_t own, int64_t offset) {
  const int64_t common = own + offset;
  std::vector<int64_t> origins(static_cast<size_t>(group.size()));
  TESSERA_RETURN_IF_ERROR(
      group.AllGather(
          collectives::ConstBuffer(std::span<const int64_t>(&common, 1)),
          collectives::Buffer(std::span(origins))),
      Annotate(_, "the begin of a pipeline's step"));
  for (int64_t& origin : origins) origin -= offset;
  return origins;
}

}  // namespace

void StepMeter::Begin() {
  ops_.Take();
  tiers_->Stamp();
  tiers_->Take();
  if (collectives_ != nullptr) collectives_->Take();
}

absl::StatusOr<StepActivity> StepMeter::End(TrainRank& rank) {
  tiers_->Stamp();
  StepActivity activity;
  activity.step = rank.steps() - 1;
  const StepTimes& times = rank.times();
  activity.whole = {times.begin, times.end};
  activity.update = {times.update_begin, times.update_end};
  activity.ops = ops_.Take();
  activity.tiers = tiers_->Take();
  if (collectives_ != nullptr) activity.collectives = collectives_->Take();
  TESSERA_RETURN_IF_ERROR(AddPipeline(rank, activity));
  return activity;
}

absl::Status StepMeter::AddPipeline(TrainRank& rank, StepActivity& activity) {
  const pipeline::RankTimeline& line = rank.executor().timeline();
  const int64_t origin = rank.times().pipeline;
  for (const auto& timed : line.computations) {
    activity.passes.push_back({timed.action, SpanOf(timed, origin)});
  }
  collectives::Communicator& group = *rank.groups().pp;
  if (group.size() == 1) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const pipeline::Timeline all, rank.GatherTimeline());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> origins,
                           Origins(group, origin, clock_offset_));
  const ComputedTimes computed(all, origins);
  int64_t last = activity.passes.empty() ? activity.whole.begin
                                         : activity.passes.back().span.end;
  for (const auto& timed : line.communications) {
    // Gathers and reductions only start there.
    if (!pipeline::Communicates(timed.action.kind)) continue;
    const Span span = SpanOf(timed, origin);
    activity.messages.push_back(
        {timed.action, span, computed.Of(timed.action)});
    if (pipeline::Receives(timed.action.kind)) last = std::max(last, span.end);
  }
  activity.tail = {last, computed.last()};
  return absl::OkStatus();
}

}  // namespace tessera::train
