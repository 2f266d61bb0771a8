#include "pipeline/draw/exhibit.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "pipeline/draw/ticks.h"

namespace tessera::pipeline {
namespace {

bool IsTime(double time) { return std::isfinite(time) && time >= 0; }

absl::Status CheckActions(const std::vector<TimedAction>& actions) {
  double last = 0;
  for (const TimedAction& timed : actions) {
    if (!IsTime(timed.begin) || !IsTime(timed.end) || timed.end < timed.begin) {
      return absl::InvalidArgumentError(absl::StrCat(
          timed.action.ToString(), " is from ", timed.begin, " to ", timed.end,
          "; times are finite, not negative, and end after they "
          "begin"));
    }
    if (timed.begin < last) {
      return absl::InvalidArgumentError(
          absl::StrCat(timed.action.ToString(), " begins at ", timed.begin,
                       ", before the action before it, at ", last,
                       "; actions are drawn in the order of their begins"));
    }
    last = timed.begin;
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(const std::vector<MemoryChange>& memory) {
  double last = 0;
  for (const MemoryChange& change : memory) {
    if (!IsTime(change.time) || change.time < last) {
      return absl::InvalidArgumentError(
          absl::StrCat("its memory changes at ", change.time, ", after ", last,
                       "; changes are in the order of time"));
    }
    last = change.time;
  }
  return absl::OkStatus();
}

absl::Status CheckSpan(const TimeSpan& span, std::string_view what) {
  if (IsTime(span.begin) && IsTime(span.end) && span.begin <= span.end) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, " from ", span.begin, " to ", span.end,
                   "; times are finite, not negative, and end after they "
                   "begin"));
}

absl::Status CheckTimeline(const Timeline& timeline) {
  const auto ranks = static_cast<int64_t>(timeline.ranks.size());
  if (ranks > kMostDrawnRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat(ranks, " ranks; a picture has at most ", kMostDrawnRanks));
  }
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const RankTimeline& line = timeline.ranks[rank];
    const std::string where = absl::StrCat("rank ", rank);
    TESSERA_RETURN_IF_ERROR(CheckActions(line.computations),
                            Annotate(_, where));
    TESSERA_RETURN_IF_ERROR(CheckActions(line.communications),
                            Annotate(_, where));
    TESSERA_RETURN_IF_ERROR(CheckMemory(line.memory), Annotate(_, where));
    TESSERA_RETURN_IF_ERROR(CheckSpan(line.optimizer, "the optimizer"),
                            Annotate(_, where));
  }
  return CheckSpan(timeline.synchronisation, "the synchronisation");
}

double EndOf(const std::vector<TimedAction>& actions) {
  double end = 0;
  for (const TimedAction& timed : actions) end = std::max(end, timed.end);
  return end;
}

}  // namespace

absl::Status CheckExhibits(std::span<const Exhibit> exhibits) {
  if (exhibits.empty()) {
    return absl::InvalidArgumentError("there is no timeline to draw");
  }
  for (const Exhibit& exhibit : exhibits) {
    TESSERA_RETURN_IF_ERROR(
        CheckTimeline(exhibit.timeline),
        Annotate(_,
                 absl::StrCat("\"", absl::CEscape(exhibit.title.substr(0, 60)),
                              "\"")));
  }
  return absl::OkStatus();
}

double ExtentOf(const Timeline& timeline) {
  double extent = std::isfinite(timeline.makespan) ? timeline.makespan : 0;
  for (const RankTimeline& line : timeline.ranks) {
    extent = std::max({extent, EndOf(line.computations),
                       EndOf(line.communications), line.optimizer.end});
  }
  return extent;
}

double ExtentOf(std::span<const Exhibit> exhibits) {
  double extent = 0;
  for (const Exhibit& exhibit : exhibits) {
    extent = std::max(extent, ExtentOf(exhibit.timeline));
  }
  return extent;
}

std::string SummaryOf(const Exhibit& exhibit, const TimeUnit& unit) {
  const Timeline& timeline = exhibit.timeline;
  int64_t bytes = 0;
  int64_t activations = 0;
  bool has_memory = false;
  for (const RankTimeline& line : timeline.ranks) {
    bytes = std::max(bytes, line.peak_bytes);
    activations = std::max(activations, line.peak_activations);
    has_memory |= !line.memory.empty();
  }
  std::string text = absl::StrFormat(
      "makespan %s %s, bubble %.2f %%, peak %d %s",
      NumberText(timeline.makespan), unit.name, 100 * timeline.BubbleRate(),
      activations, activations == 1 ? "micro-batch" : "micro-batches");
  if (has_memory) absl::StrAppend(&text, ", ", BytesText(bytes));
  return text;
}

}  // namespace tessera::pipeline
