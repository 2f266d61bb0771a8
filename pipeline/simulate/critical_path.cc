#include "pipeline/simulate/critical_path.h"

#include <algorithm>

#include "base/status_macros.h"
#include "pipeline/simulate/event_graph.h"

namespace tessera::pipeline {
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

  // InvalidArgument where events wait for each other in a circle.
  absl::StatusOr<Path> From(double makespan) {
    const int32_t last = LastEvent();
    if (last == kNoEvent) return Path();
    WaitUntil(makespan, At(last).end, At(last));
    double end = std::min(makespan, At(last).end);
    for (int32_t event = last; event != kNoEvent;) {
      if (path_.steps.size() > 2 * events_.size() + 1) {
        return absl::InvalidArgumentError(
            "the timeline's actions wait for each other in a circle");
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

  // A message that travels beside the computations is last of all only where
  // nobody needs it.
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

  // Puts the event's part until `end` on the path. Returns the event that it
  // waited for last, and sets `end` to the end of that one's part.
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
