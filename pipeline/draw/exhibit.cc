#include "pipeline/draw/exhibit.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace tessera::pipeline {

std::vector<double> TicksTo(double last, int most) {
  std::vector<double> ticks = {0};
  if (!(last > 0) || !std::isfinite(last)) return ticks;
  const double least = last / (most - 1);
  const double power = std::pow(10, std::floor(std::log10(least)) - 1);
  double step = power;
  for (const double factor : {2, 5, 10, 20, 50, 100, 200}) {
    if (std::floor(last / step * (1 + 1e-12)) < most) break;
    step = factor * power;
  }
  const double count = std::floor(last / step * (1 + 1e-12));
  for (double i = 1; i <= count; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string NumberText(double value) { return absl::StrFormat("%.5g", value); }

std::string BytesText(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.3g %s", value, kUnits[unit]);
}

namespace {

Curve HeldBy(const RankTimeline& rank) {
  // Changes by one, in order of time; at the same time ends precede begins.
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

// Keeps only the last of several changes at the same time.
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

// Adds the change unless the curve already has this value.
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

namespace {

bool IsTime(double time) { return std::isfinite(time) && time >= 0; }

absl::Status CheckActions(const std::vector<TimedAction>& actions) {
  double last = 0;
  for (const TimedAction& timed : actions) {
    if (!IsTime(timed.begin) || !IsTime(timed.end) || timed.end < timed.begin) {
      return absl::InvalidArgumentError(absl::StrCat(
          timed.action.ToString(), " is from ", timed.begin, " to ", timed.end,
          "; times must be finite, not negative, and end after they "
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
                   "; times must be finite, not negative, and end after they "
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
    return absl::InvalidArgumentError("the exhibit has no timeline");
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
