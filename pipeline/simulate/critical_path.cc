#include "pipeline/simulate/critical_path.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pipeline/proof/action_position.h"

namespace tessera::pipeline {

namespace {

// The result that a stage sends for a micro-batch: direction, stage, micro-
// batch.
using ResultKey = std::tuple<PassDirection, int32_t, int32_t>;
using EventOf = absl::flat_hash_map<ResultKey, int32_t>;

// The state of the walk through a rank's list.
struct RankWalk {
  size_t computations = 0;    // Index in the timeline's computations.
  size_t others = 0;          // Index in its communications.
  int32_t last = kNoEvent;    // The last event on the rank itself.
  int32_t stream = kNoEvent;  // The last event on its stream.
  absl::flat_hash_map<int32_t, int32_t> gathered;  // By stage, its UNSHARD.
};

bool HasMessages(const Schedule& schedule) {
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) {
      if (Communicates(action.kind)) return true;
    }
  }
  return false;
}

class Builder {
 public:
  Builder(const Schedule& schedule, const Timeline& timeline, bool overlap)
      : schedule_(schedule),
        timeline_(timeline),
        overlap_(overlap),
        lowered_(HasMessages(schedule)) {}

  absl::StatusOr<std::vector<Event>> Build() {
    if (timeline_.ranks.size() != schedule_.ranks.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a timeline of ", timeline_.ranks.size(),
                       " ranks for a schedule of ", schedule_.ranks.size()));
    }
    AddResults();
    std::vector<RankWalk> walks(schedule_.ranks.size());
    for (size_t rank = 0; rank < walks.size(); ++rank) {
      TESSERA_RETURN_IF_ERROR(Walk(static_cast<int32_t>(rank), walks[rank]));
    }
    AddOptimizer(walks);
    return std::move(events_);
  }

 private:
  const RankTimeline& Line(int32_t rank) const {
    return timeline_.ranks[static_cast<size_t>(rank)];
  }

  int32_t Add(PathKind kind, int32_t rank, const TimedAction& timed) {
    events_.push_back({kind, rank, timed.action, timed.begin, timed.end, {}});
    return static_cast<int32_t>(events_.size()) - 1;
  }

  void After(int32_t event, int32_t before, Cause cause) {
    if (before == kNoEvent) return;
    events_[static_cast<size_t>(event)].before.push_back({before, cause});
  }

  static int32_t Find(const EventOf& events, const ResultKey& key) {
    const auto found = events.find(key);
    return found == events.end() ? kNoEvent : found->second;
  }

  // The events that other ranks' events refer to.
  void AddResults() {
    for (int32_t rank = 0; rank < static_cast<int32_t>(timeline_.ranks.size());
         ++rank) {
      first_computation_.push_back(static_cast<int32_t>(events_.size()));
      for (const TimedAction& timed : Line(rank).computations) {
        const int32_t event = Add(PathKind::kAction, rank, timed);
        const auto [kind, stage, mb, with_next] = timed.action;
        if (kind == ActionKind::kBackwardWeight) continue;
        producers_[{DirectionOf(kind), stage, mb}] = event;
      }
      for (const TimedAction& timed : Line(rank).communications) {
        const auto [kind, stage, mb, with_next] = timed.action;
        if (!Sends(kind)) continue;
        messages_[{DirectionOf(kind), stage, mb}] =
            Add(PathKind::kAction, rank, timed);
      }
    }
    for (const RankTimeline& line : timeline_.ranks) {
      for (const TimedAction& timed : line.communications) {
        if (!Receives(timed.action.kind)) continue;
        const int32_t message = Find(messages_, InputOf(timed.action));
        if (message == kNoEvent) continue;
        events_[static_cast<size_t>(message)].end = timed.end;
      }
    }
  }

  // The result of the neighbouring stage that an action reads.
  ResultKey InputOf(const Action& action) const {
    const PassDirection direction = DirectionOf(action.kind);
    return {direction, SourceOf(schedule_, direction, action.stage),
            action.microbatch};
  }

  ResultKey OutputOf(const Action& action) const {
    return {DirectionOf(action.kind), action.stage, action.microbatch};
  }

  absl::Status Walk(int32_t rank, RankWalk& walk) {
    const auto& actions = schedule_.ranks[static_cast<size_t>(rank)];
    for (size_t at = 0; at < actions.size(); ++at) {
      const ActionPosition place{rank, static_cast<int32_t>(at)};
      const auto [kind, stage, mb, with_next] = actions[at];
      if (stage < 0 || stage >= schedule_.map.stages()) return NotThere(place);
      if (Computes(kind)) {
        TESSERA_RETURN_IF_ERROR(Compute(place, walk));
      } else if (Communicates(kind)) {
        const int32_t before = walk.last;
        TESSERA_RETURN_IF_ERROR(Communicate(place, before, walk));
        if (!with_next || at + 1 == actions.size() ||
            !Communicates(actions[at + 1].kind)) {
          continue;
        }
        TESSERA_RETURN_IF_ERROR(
            Communicate({rank, static_cast<int32_t>(++at)}, before, walk));
      } else if (kind == ActionKind::kReshard) {
        walk.gathered.erase(stage);
      } else {
        TESSERA_RETURN_IF_ERROR(UseStream(place, walk));
      }
    }
    return absl::OkStatus();
  }

  absl::Status NotThere(ActionPosition place) const {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(schedule_, place),
                     " is not at its place in the timeline; give the timeline "
                     "of this schedule, "
                     "with traces"));
  }

  absl::Status Compute(ActionPosition place, RankWalk& walk) {
    const Action& action = ActionAt(schedule_, place);
    const auto& computations = Line(place.rank).computations;
    const size_t index = walk.computations++;
    if (index >= computations.size() ||
        !(computations[index].action == action)) {
      return NotThere(place);
    }
    const int32_t event = first_computation_[static_cast<size_t>(place.rank)] +
                          static_cast<int32_t>(index);
    After(event, walk.last, Cause::kSameRank);
    walk.last = event;
    if (action.kind != ActionKind::kBackwardWeight) {
      const ResultKey input = InputOf(action);
      const int32_t message = Find(messages_, input);
      After(event, message != kNoEvent ? message : Find(producers_, input),
            Cause::kInput);
    }
    const auto gathered = walk.gathered.find(action.stage);
    if (gathered != walk.gathered.end()) {
      After(event, gathered->second, Cause::kParameters);
    }
    SendImplied(place.rank, action, event, walk);
    return absl::OkStatus();
  }

  // The event of a message for which the schedule has no SEND.
  void SendImplied(int32_t rank, const Action& action, int32_t computation,
                   RankWalk& walk) {
    if (action.kind == ActionKind::kBackwardWeight || lowered_) return;
    const int32_t message = Find(
        messages_, {DirectionOf(action.kind), action.stage, action.microbatch});
    if (message == kNoEvent) return;
    After(message, computation, Cause::kSameRank);
    Queue(rank, action, message);
    if (!overlap_) walk.last = message;
  }

  // A send or receive, which the rank has reached from `before`.
  absl::Status Communicate(ActionPosition place, int32_t before,
                           RankWalk& walk) {
    const Action& action = ActionAt(schedule_, place);
    if (action.stage < 0 || action.stage >= schedule_.map.stages()) {
      return NotThere(place);
    }
    const bool sends = Sends(action.kind);
    if (!sends && overlap_) return absl::OkStatus();
    const int32_t message =
        Find(messages_, sends ? OutputOf(action) : InputOf(action));
    if (message == kNoEvent) return NotThere(place);
    After(message, before, sends ? Cause::kSameRank : Cause::kPeer);
    if (sends) Queue(place.rank, action, message);
    if (overlap_) return absl::OkStatus();
    // With two messages at the same time the rank waits for the later one.
    if (walk.last == before || EndOf(message) > EndOf(walk.last)) {
      walk.last = message;
    }
    return absl::OkStatus();
  }

  double EndOf(int32_t event) const {
    return events_[static_cast<size_t>(event)].end;
  }

  // After the previous message of the link.
  void Queue(int32_t rank, const Action& action, int32_t message) {
    const int32_t target =
        TargetOf(schedule_, DirectionOf(action.kind), action.stage);
    if (target == kNoStage) return;
    const int32_t peer = schedule_.RankOf(target, action.microbatch);
    int32_t& last =
        last_on_link_.try_emplace({rank, peer}, kNoEvent).first->second;
    After(message, last, Cause::kLink);
    last = message;
  }

  // UNSHARD or REDUCE_GRAD.
  absl::Status UseStream(ActionPosition place, RankWalk& walk) {
    const Action& action = ActionAt(schedule_, place);
    const auto& others = Line(place.rank).communications;
    while (walk.others < others.size() &&
           (HasMicroBatch(others[walk.others].action.kind) ||
            others[walk.others].action.kind == ActionKind::kReshard)) {
      ++walk.others;
    }
    if (walk.others == others.size() ||
        !(others[walk.others].action == action)) {
      return NotThere(place);
    }
    const int32_t event =
        Add(PathKind::kAction, place.rank, others[walk.others++]);
    After(event, walk.last, Cause::kSameRank);
    After(event, walk.stream, Cause::kParameters);
    walk.stream = event;
    if (action.kind == ActionKind::kUnshard) {
      walk.gathered[action.stage] = event;
    }
    return absl::OkStatus();
  }

  void AddOptimizer(const std::vector<RankWalk>& walks) {
    int32_t all = kNoEvent;
    const TimeSpan& together = timeline_.synchronisation;
    if (together.end > 0) {
      all = Add(PathKind::kSynchronisation, 0,
                {{}, together.begin, together.end});
      for (const RankWalk& walk : walks) {
        After(all, walk.last, Cause::kAllRanks);
        After(all, walk.stream, Cause::kAllRanks);
      }
    }
    for (size_t rank = 0; rank < walks.size(); ++rank) {
      const TimeSpan& span = timeline_.ranks[rank].optimizer;
      if (span.end <= 0) continue;
      const int32_t event =
          Add(PathKind::kOptimizer, static_cast<int32_t>(rank),
              {{}, span.begin, span.end});
      if (all != kNoEvent) {
        After(event, all, Cause::kAllRanks);
        continue;
      }
      After(event, walks[rank].last, Cause::kSameRank);
      After(event, walks[rank].stream, Cause::kParameters);
    }
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  const bool overlap_;
  const bool lowered_;
  std::vector<Event> events_;
  std::vector<int32_t> first_computation_;  // By rank.
  EventOf producers_;
  EventOf messages_;
  absl::flat_hash_map<std::pair<int32_t, int32_t>, int32_t> last_on_link_;
};

}  // namespace

absl::StatusOr<std::vector<Event>> EventGraph(const Schedule& schedule,
                                              const Timeline& timeline,
                                              bool overlap) {
  return Builder(schedule, timeline, overlap).Build();
}

namespace {

void AddUp(const PathStep& step, Path& path) {
  const double time = step.end - step.begin;
  switch (step.kind) {
    case PathKind::kAction:
      path.actions[static_cast<size_t>(step.action.kind)] += time;
      break;
    case PathKind::kSynchronisation:
      path.synchronisation += time;
      break;
    case PathKind::kOptimizer:
      path.optimizer += time;
      break;
    case PathKind::kWait:
      path.waits += time;
  }
}

// From the last event back to time 0.
class Walk {
 public:
  explicit Walk(const std::vector<Event>& events) : events_(events) {}

  // InvalidArgument if events wait for each other in a cycle.
  absl::StatusOr<Path> From(double makespan) {
    const int32_t last = LastEvent();
    if (last == kNoEvent) return Path();
    WaitUntil(makespan, At(last).end, At(last));
    double end = std::min(makespan, At(last).end);
    for (int32_t event = last; event != kNoEvent;) {
      if (path_.steps.size() > 2 * events_.size() + 1) {
        return absl::InvalidArgumentError(
            "the timeline's actions wait for each other in a cycle");
      }
      event = Step(event, end);
    }
    std::reverse(path_.steps.begin(), path_.steps.end());
    for (const PathStep& step : path_.steps) AddUp(step, path_);
    return std::move(path_);
  }

 private:
  const Event& At(int32_t event) const {
    return events_[static_cast<size_t>(event)];
  }

  // An overlapped message is the last event only if no computation needs it.
  int32_t LastEvent() const {
    int32_t last = kNoEvent;
    for (size_t i = 0; i < events_.size(); ++i) {
      if (last == kNoEvent || events_[i].end > At(last).end) {
        last = static_cast<int32_t>(i);
      }
    }
    return last;
  }

  void WaitUntil(double end, double begin, const Event& event) {
    if (begin >= end) return;
    path_.steps.push_back({PathKind::kWait, event.rank, event.action, begin,
                           end, Cause::kSameRank});
  }

  // Adds the event's part until `end` to the path. Returns the event that it
  // waited for last, and sets `end` to the end of that event's part.
  int32_t Step(int32_t index, double& end) {
    const Event& event = At(index);
    EventBefore last;
    double last_end = 0;
    for (const EventBefore& before : event.before) {
      const Event& other = At(before.event);
      if (other.begin > event.begin) continue;
      const double other_end = std::min(other.end, event.begin);
      if (last.event != kNoEvent && other_end <= last_end) continue;
      last = before;
      last_end = other_end;
    }
    path_.steps.push_back(
        {event.kind, event.rank, event.action, event.begin, end, last.cause});
    WaitUntil(event.begin, last_end, event);
    end = last_end;
    return last.event;
  }

  const std::vector<Event>& events_;
  Path path_;
};

}  // namespace

absl::StatusOr<Path> CriticalPath(const Schedule& schedule,
                                  const Timeline& timeline,
                                  const CriticalPathOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<Event> events,
      EventGraph(schedule, timeline, options.overlap_communication));
  return Walk(events).From(timeline.makespan);
}

}  // namespace tessera::pipeline
