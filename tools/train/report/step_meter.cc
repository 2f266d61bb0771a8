#include "tools/train/report/step_meter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/fnv1a.h"
#include "base/status_macros.h"

namespace tessera::train {

namespace {

using collectives::Buffer;
using collectives::Communicator;
using collectives::ConstBuffer;
using collectives::Rank;

constexpr int kRoundTrips = 8;
// Shorter gaps between operations are not recorded; see OpsTime.
constexpr int64_t kLeastGapNs = 300;

// Shifted to be positive.
int64_t HashOf(std::string_view text) {
  return static_cast<int64_t>(Fnv1a(text) >> 1);
}

absl::Status Answer(Communicator& world, Rank asker,
                    const std::function<int64_t()>& now) {
  for (int i = 0; i < kRoundTrips; ++i) {
    int64_t word = 0;
    TESSERA_RETURN_IF_ERROR(world.Receive(Buffer(std::span(&word, 1)), asker));
    word = now();
    TESSERA_RETURN_IF_ERROR(
        world.Send(ConstBuffer(std::span<const int64_t>(&word, 1)), asker));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Ask(Communicator& world,
                            const std::function<int64_t()>& now) {
  int64_t offset = 0;
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kRoundTrips; ++i) {
    int64_t word = 0;
    const int64_t begin = now();
    TESSERA_RETURN_IF_ERROR(
        world.Send(ConstBuffer(std::span<const int64_t>(&word, 1)), Rank(0)));
    TESSERA_RETURN_IF_ERROR(
        world.Receive(Buffer(std::span(&word, 1)), Rank(0)));
    const int64_t took = now() - begin;
    if (took >= shortest) continue;
    shortest = took;
    offset = word - (begin + took / 2);
  }
  return offset;
}

}  // namespace

std::string_view BootId() {
  static const std::string id =
      ReadFile("/proc/sys/kernel/random/boot_id", 4096).value_or("");
  return id;
}

absl::StatusOr<int64_t> ClockOffset(Communicator& world,
                                    std::string_view system,
                                    const std::function<int64_t()>& now) {
  const int64_t mine = HashOf(system);
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  TESSERA_RETURN_IF_ERROR(
      world.AllGather(ConstBuffer(std::span<const int64_t>(&mine, 1)),
                      Buffer(std::span(all))),
      Annotate(_, "comparing the ranks' clocks"));
  for (int64_t rank = 1; rank < world.size(); ++rank) {
    if (all[static_cast<size_t>(rank)] == all[0]) continue;
    if (world.rank() == Rank(rank)) return Ask(world, now);
    if (world.rank() != Rank(0)) continue;
    TESSERA_RETURN_IF_ERROR(Answer(world, Rank(rank), now));
  }
  return 0;
}

namespace {

using pipeline::Action;
using pipeline::ActionKind;

int64_t Nanos(double seconds) {
  return static_cast<int64_t>(std::llround(seconds * 1e9));
}

Span SpanOf(const pipeline::TimedAction& timed, int64_t origin) {
  return {origin + Nanos(timed.begin), origin + Nanos(timed.end)};
}

// A tensor that one stage sends to another: the output of a micro-batch, or the
// gradient of its input.
struct Computed {
  bool is_output = true;
  int32_t stage = 0;
  int32_t microbatch = 0;

  friend auto operator<=>(const Computed&, const Computed&) = default;
};

// The times at which the tensors between stages were computed, on this rank's
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

  // When the tensor of a receive was computed; 0 for other actions.
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

// The origins of the pipeline ranks' timelines, on this rank's clock. `group`
// is for host memory.
absl::StatusOr<std::vector<int64_t>> Origins(collectives::Communicator& group,
                                             int64_t own, int64_t offset) {
  const int64_t common = own + offset;
  std::vector<int64_t> origins(static_cast<size_t>(group.size()));
  TESSERA_RETURN_IF_ERROR(
      group.AllGather(
          collectives::ConstBuffer(std::span<const int64_t>(&common, 1)),
          collectives::Buffer(std::span(origins))),
      Annotate(_, "comparing the begins of a pipeline step"));
  for (int64_t& origin : origins) origin -= offset;
  return origins;
}

}  // namespace

StepMeter::StepMeter(tensor_parallel::Ops& ops,
                     std::shared_ptr<CollectiveLog> collectives,
                     int64_t clock_offset)
    : ops_(ops),
      tiers_(std::make_shared<TierLog>()),
      collectives_(std::move(collectives)),
      clock_offset_(clock_offset) {
  ops_.Observe(collectives::MonotonicNanos,
               [this](std::string_view name, int64_t begin, int64_t end) {
                 AddOperation(tensor_parallel::KindOf(name), begin, end);
               });
}

void StepMeter::AddOperation(tensor_parallel::OperationKind kind, int64_t begin,
                             int64_t end) {
  if (kind != tensor_parallel::OperationKind::kOther) {
    ops_time_.products_ns += end - begin;
  }
  Spans& spans = ops_time_.spans;
  if (!spans.empty() && begin - spans.back().end < kLeastGapNs) {
    spans.back().end = end;
  } else if (end > begin) {
    spans.push_back({begin, end});
  }
}

absl::Status StepMeter::Begin(TrainRank& rank) {
  if (ended_steps_ == 1) {
    TESSERA_RETURN_IF_ERROR(rank.model().AwaitGathers());
  }
  at_begin_ = AddLateGathers(rank);
  ops_time_ = {};
  tiers_->Stamp();
  tiers_->Take();
  if (collectives_ != nullptr) collectives_->Take();
  return absl::OkStatus();
}

absl::StatusOr<StepActivity> StepMeter::End(TrainRank& rank) {
  tiers_->Stamp();
  AddMessages(rank);
  StepActivity activity;
  activity.step = rank.steps() - 1;
  const StepTimes& times = rank.times();
  activity.whole = {times.begin, times.end};
  activity.update = {times.update_begin, times.update_end};
  activity.data_ns = times.data_ns;
  activity.ops = std::exchange(ops_time_, {});
  activity.tiers = tiers_->Take();
  if (collectives_ != nullptr) activity.collectives = collectives_->Take();
  TESSERA_RETURN_IF_ERROR(AddPipeline(rank, activity));
  return activity;
}

void StepMeter::AddMessages(const TrainRank& rank) {
  if (ended_steps_ < 2) traffic_.emplace(rank.options().mesh);
  at_end_ = TrafficOf(rank);
  traffic_->Add(at_end_->Since(*at_begin_));
  ++ended_steps_;
}

// Nothing else gathers weights between steps.
RankTraffic StepMeter::AddLateGathers(const TrainRank& rank) {
  RankTraffic now = TrafficOf(rank);
  if (!at_end_) return now;
  const RankTraffic later = now.Since(*at_end_);
  at_end_.reset();
  for (const auto& [key, totals] : later.all()) {
    const bool is_state =
        key.first == TrafficAxis::kDp || key.first == TrafficAxis::kEdp;
    if (is_state && key.second == collectives::OpKind::kAllGather) {
      traffic_->Add(key.first, key.second, totals);
    }
  }
  return now;
}

absl::Status StepMeter::LeaveOut(TrainRank& rank,
                                 absl::FunctionRef<absl::Status()> body) {
  TESSERA_RETURN_IF_ERROR(rank.model().AwaitGathers());
  AddLateGathers(rank);
  TESSERA_RETURN_IF_ERROR(body());
  at_end_ = TrafficOf(rank);
  return absl::OkStatus();
}

MeasuredMessages StepMeter::Messages(const TrainRank& rank) {
  AddLateGathers(rank);
  if (!traffic_) return {};
  return {.steps = std::max<int64_t>(ended_steps_ - 1, 1),
          .is_timed = rank.options().state.queue->is_immediate(),
          .messages = MessagesOf(*traffic_)};
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
                           Origins(group.host(), origin, clock_offset_));
  const ComputedTimes computed(all, origins);
  int64_t last = activity.passes.empty() ? activity.whole.begin
                                         : activity.passes.back().span.end;
  for (const auto& timed : line.communications) {
    // Gathers and reductions only start at these times.
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
