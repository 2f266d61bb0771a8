#include "pipeline/draw/perfetto.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "pipeline/draw/exhibit.h"

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

namespace {

// Quotes a JSON string; bytes that are not UTF-8 become U+FFFD.
std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', true,
                                   nlohmann::json::error_handler_t::replace);
}

class Trace {
 public:
  explicit Trace(const TimeUnit& unit) : microseconds_(unit.microseconds) {}

  void Add(const Exhibit& exhibit) {
    ++process_;
    next_thread_ = exhibit.timeline.ranks.size();
    AddMetadata("process_name", 0, "name", Quoted(exhibit.title));
    AddMetadata("process_sort_index", 0, "sort_index", absl::StrCat(process_));
    for (size_t rank = 0; rank < exhibit.timeline.ranks.size(); ++rank) {
      const RankTimeline& line = exhibit.timeline.ranks[rank];
      AddActions(rank, line.computations, "", rank);
      AddActions(rank, line.communications, " communication", next_thread_);
      AddSpan(rank, line.optimizer, "optimizer");
      AddSpan(rank, exhibit.timeline.synchronisation, "synchronisation");
    }
    AddCounters(exhibit.timeline);
  }

  std::string Finish() && {
    return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
                        events_, "\n]}\n");
  }

 private:
  // Writes the fields with which all events begin.
  void Begin(char phase, size_t thread, std::string_view name) {
    absl::StrAppend(&events_, events_.empty() ? "" : ",\n", "{\"ph\":\"",
                    std::string_view(&phase, 1), "\",\"pid\":", process_,
                    ",\"tid\":", thread, ",\"name\":", name);
  }

  void AddMetadata(std::string_view name, size_t thread, std::string_view key,
                   std::string_view value) {
    Begin('M', thread, absl::StrCat("\"", name, "\""));
    absl::StrAppend(&events_, ",\"args\":{\"", key, "\":", value, "}}");
  }

  // Adds actions on thread `first`, and on further threads if they overlap.
  void AddActions(size_t rank, const std::vector<TimedAction>& actions,
                  std::string_view what, size_t first) {
    const std::vector<size_t> lanes = LanesOf(actions);
    std::vector<size_t> threads;
    for (size_t i = 0; i < actions.size(); ++i) {
      while (threads.size() <= lanes[i]) {
        const size_t thread =
            threads.empty() && first < next_thread_ ? first : next_thread_++;
        AddThread(rank, thread, what, threads.size());
        threads.push_back(thread);
      }
      AddAction(threads[lanes[i]], actions[i]);
    }
  }

  void AddThread(size_t rank, size_t thread, std::string_view what,
                 size_t lane) {
    const std::string name =
        absl::StrCat("rank ", rank, what,
                     lane == 0 ? "" : absl::StrCat(" (", lane + 1, ")"));
    AddMetadata("thread_name", thread, "name", Quoted(name));
    AddMetadata("thread_sort_index", thread, "sort_index",
                absl::StrCat(rank * 64 + (what.empty() ? 0 : 32) + lane));
  }

  void AddAction(size_t thread, const TimedAction& timed) {
    const Action& action = timed.action;
    Begin('X', thread, absl::StrCat("\"", action.ToString(), "\""));
    absl::StrAppend(&events_, ",\"cat\":\"", ActionKindName(action.kind),
                    "\",\"ts\":", Microseconds(timed.begin),
                    ",\"dur\":", Microseconds(timed.end - timed.begin),
                    ",\"args\":{\"stage\":", action.stage,
                    HasMicroBatch(action.kind)
                        ? absl::StrCat(",\"microbatch\":", action.microbatch)
                        : "",
                    "}}");
  }

  void AddSpan(size_t rank, const TimeSpan& span, std::string_view name) {
    if (span.end <= span.begin) return;
    Begin('X', rank, absl::StrCat("\"", name, "\""));
    absl::StrAppend(&events_, ",\"cat\":\"", name,
                    "\",\"ts\":", Microseconds(span.begin),
                    ",\"dur\":", Microseconds(span.end - span.begin), "}");
  }

  void AddCounters(const Timeline& timeline) {
    const Curves curves = CurvesOf(timeline);
    const std::string_view unit = curves.are_bytes ? "bytes" : "microbatches";
    for (size_t rank = 0; rank < curves.ranks.size(); ++rank) {
      const std::string name = Quoted(absl::StrCat(
          "rank ", rank, " ", curves.are_bytes ? "memory" : "micro-batches"));
      for (const MemoryChange& change : curves.ranks[rank]) {
        Begin('C', 0, name);
        absl::StrAppend(&events_, ",\"ts\":", Microseconds(change.time),
                        ",\"args\":{\"", unit, "\":", change.bytes, "}}");
      }
    }
  }

  std::string Microseconds(double time) const {
    return absl::StrFormat("%.3f", time * microseconds_);
  }

  const double microseconds_;
  int64_t process_ = -1;
  size_t next_thread_ = 0;
  std::string events_;
};

}  // namespace

absl::StatusOr<std::string> DrawPerfetto(std::span<const Exhibit> exhibits,
                                         const TimeUnit& unit) {
  TESSERA_RETURN_IF_ERROR(CheckExhibits(exhibits));
  Trace trace(unit);
  for (const Exhibit& exhibit : exhibits) trace.Add(exhibit);
  return std::move(trace).Finish();
}

}  // namespace tessera::pipeline
