#include "pipeline/draw/rows.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "pipeline/draw/boxes.h"
#include "pipeline/draw/chunks.h"
#include "pipeline/draw/palette.h"
#include "pipeline/draw/ticks.h"

namespace tessera::pipeline {
namespace {

constexpr double kAxisHeight = 34;
constexpr double kLeastNameHeight = 7;
constexpr double kSeam = 0.3;  // By which a run goes below the next one.

// The part of a row, from the top, that an action takes.
struct Band {
  double top = 0;
  double height = 0;
};

class Row {
 public:
  Row(const Layout& layout, const RankTimeline& line, const TimeUnit& unit,
      double top, SvgWriter& svg)
      : layout_(layout),
        line_(line),
        unit_(unit),
        top_(top),
        svg_(svg),
        chunks_(line) {}

  void Draw() {
    const std::vector<TimedAction>& computations = line_.computations;
    for (const Box& box : BoxesOf(computations, layout_.least)) {
      if (box.count == 1) {
        DrawOne(box.first);
      } else {
        DrawRun(computations, box, {top_, layout_.row});
      }
    }
    // Outlines last, so that no neighbour covers them.
    for (size_t i = 0; i + 1 < computations.size(); ++i) DrawPair(i);
    DrawCommunications();
    DrawSpan(line_.optimizer, kOptimizer, "optimizer");
  }

 private:
  double WidthOf(double begin, double end) const {
    return std::max((end - begin) * layout_.scale, 0.25);
  }
  bool IsSeen(const TimedAction& timed) const {
    return timed.end - timed.begin >= layout_.least;
  }
  bool IsPair(size_t first) const {
    return first + 1 < line_.computations.size() &&
           line_.computations[first].action.with_next;
  }
  bool Overlap(size_t first) const {
    return IsPair(first) &&
           line_.computations[first + 1].begin <
               line_.computations[first].end - layout_.least / 2;
  }

  Colour ColourOfAction(const Action& action) const {
    return ColourOf(action.kind, chunks_.Of(action.stage), chunks_.count());
  }

  std::string Tooltip(const TimedAction& timed) const {
    if (!layout_.has_tooltips) return "";
    return absl::StrCat(timed.action.ToString(), ": ", NumberText(timed.begin),
                        " to ", NumberText(timed.end), " ", unit_.name);
  }

  Band BandOf(size_t i) const {
    const double half = layout_.row / 2;
    if (Overlap(i)) return {top_, half};
    if (i > 0 && Overlap(i - 1)) return {top_ + half, half};
    return {top_, layout_.row};
  }

  void DrawOne(size_t i) {
    const TimedAction& timed = line_.computations[i];
    const Band band = BandOf(i);
    const Colour colour = ColourOfAction(timed.action);
    const double x = layout_.XOf(timed.begin);
    const double width = WidthOf(timed.begin, timed.end);
    svg_.Box({.x = x,
              .y = band.top,
              .width = width,
              .height = band.height,
              .fill = colour.ToHex(),
              .stroke = width >= 5 ? kWhite.ToHex() : ""},
             Tooltip(timed));
    const std::string number = absl::StrCat(timed.action.microbatch);
    const double size = std::min(layout_.number, band.height - 2);
    const double needed =
        tessera::pipeline::WidthOf(static_cast<int64_t>(number.size()), size);
    if (size < 6 || needed + 2 > width) return;
    svg_.Text({.x = x + width / 2,
               .y = band.top + band.height / 2 + 0.36 * size,
               .classes = "middle",
               .fill = TextOn(colour).ToHex(),
               .size = size},
              number);
  }

  // The mean of what the run's time is spent on, idle time among it.
  void DrawRun(const std::vector<TimedAction>& actions, const Box& box,
               const Band& band) {
    double busy = 0;
    Colour sum;
    for (size_t i = box.first; i < box.first + box.count; ++i) {
      const double time = actions[i].end - actions[i].begin;
      const Colour colour = ColourOfAction(actions[i].action);
      sum = {sum.red + colour.red * time, sum.green + colour.green * time,
             sum.blue + colour.blue * time};
      busy += time;
    }
    const double span = box.end - box.begin;
    const Colour mean =
        busy > 0 ? Colour{sum.red / busy, sum.green / busy, sum.blue / busy}
                 : ColourOfAction(actions[box.first].action);
    const double idle = span > busy ? 1 - busy / span : 0;
    svg_.Box({.x = layout_.XOf(box.begin),
              .y = band.top,
              .width = WidthOf(box.begin, box.end) + kSeam,
              .height = band.height,
              .fill = Mix(mean, kIdle, idle).ToHex()});
  }

  void DrawPair(size_t i) {
    if (!IsPair(i)) return;
    const TimedAction& a = line_.computations[i];
    const TimedAction& b = line_.computations[i + 1];
    if (!IsSeen(a) || !IsSeen(b)) return;
    const double width = (std::max(a.end, b.end) - a.begin) * layout_.scale;
    if (width < 6) return;
    svg_.Box({.x = layout_.XOf(a.begin) + 0.5,
              .y = top_ + 0.5,
              .width = width - 1,
              .height = layout_.row - 1,
              .stroke = kInk.ToHex()});
  }

  void DrawSpan(const TimeSpan& span, const Colour& colour,
                std::string_view name) {
    if (span.end <= span.begin) return;
    svg_.Box({.x = layout_.XOf(span.begin),
              .y = top_,
              .width = WidthOf(span.begin, span.end),
              .height = layout_.row,
              .fill = colour.ToHex()},
             layout_.has_tooltips ? name : "");
  }

  void DrawCommunications() {
    const Band band = {top_ + layout_.row + 1, layout_.lane - 1};
    for (const Box& box : BoxesOf(line_.communications, layout_.least)) {
      if (box.count > 1) {
        DrawRun(line_.communications, box, band);
        continue;
      }
      const TimedAction& timed = line_.communications[box.first];
      svg_.Box({.x = layout_.XOf(timed.begin),
                .y = band.top,
                .width = WidthOf(timed.begin, timed.end),
                .height = band.height,
                .fill = ColourOfAction(timed.action).ToHex()},
               Tooltip(timed));
    }
  }

  const Layout& layout_;
  const RankTimeline& line_;
  const TimeUnit& unit_;
  const double top_;
  SvgWriter& svg_;
  const Chunks chunks_;
};

void DrawAxis(const Layout& layout, const TimeUnit& unit, double y,
              SvgWriter& svg) {
  svg.Begin("time");
  const double end = layout.XOf(layout.extent);
  const std::string style =
      absl::StrCat("stroke=\"", kInk.ToHex(), "\" stroke-width=\"0.8\"");
  svg.Line(layout.left, y, end, y, style);
  const int most = static_cast<int>((end - layout.left) / 70) + 2;
  for (const double tick : TicksTo(layout.extent, most)) {
    const double x = layout.XOf(tick);
    svg.Line(x, y, x, y + 4, style);
    svg.Text({.x = x, .y = y + 16, .classes = "middle"}, NumberText(tick));
  }
  svg.Text({.x = end + 8, .y = y + 16, .classes = "small"},
           absl::StrCat("time, ", unit.name));
  svg.End();
}

}  // namespace

double HeightOfRows(const Layout& layout, const Timeline& timeline) {
  return layout.rank_height() * static_cast<double>(timeline.ranks.size()) +
         kAxisHeight;
}

void DrawRows(const Layout& layout, const Timeline& timeline,
              const TimeUnit& unit, double top, SvgWriter& svg) {
  const bool has_names = layout.row >= kLeastNameHeight;
  const double size = std::min(11.0, layout.row);
  const double end = layout.XOf(layout.extent);
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const double y = top + layout.rank_height() * static_cast<double>(rank);
    const std::string name = absl::StrCat("rank ", rank);
    const double base = y + layout.row / 2 + 0.36 * size;
    svg.Begin(name);
    svg.Box({.x = layout.left,
             .y = y,
             .width = end - layout.left,
             .height = layout.row,
             .fill = kIdle.ToHex()});
    if (has_names) {
      svg.Text(
          {.x = layout.left - 8, .y = base, .classes = "right", .size = size},
          name);
      svg.Text({.x = end + 8, .y = base, .classes = "small", .size = size},
               absl::StrFormat(
                   "%.1f %%",
                   100 * timeline.BubbleRate(static_cast<int32_t>(rank))));
    }
    Row(layout, timeline.ranks[rank], unit, y, svg).Draw();
    svg.End();
  }
  DrawAxis(layout, unit, top + HeightOfRows(layout, timeline) - kAxisHeight + 2,
           svg);
}

}  // namespace tessera::pipeline
