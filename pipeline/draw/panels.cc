#include "pipeline/draw/panels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/svg_writer.h"

namespace tessera::pipeline {

namespace {

constexpr double kLeastWidth = 560;  // Width of the time axis.
constexpr double kMostWidth = 1640;
constexpr double kMostBoxes = 40000;
constexpr int64_t kMostTooltips = 6000;
constexpr double kLargestNumber = 12;
constexpr double kSmallestNumber = 6.5;

// The dimensions of the whole drawing.
struct Survey {
  double usual = 0;  // The first quartile of computation times.
  int64_t computations = 0;
  int64_t rows = 0;        // Over all panels.
  int64_t most_ranks = 0;  // Of any panel.
  int32_t last_microbatch = 0;
  bool has_communication = false;
};

Survey SurveyOf(std::span<const Exhibit> exhibits) {
  Survey survey;
  std::vector<double> times;
  for (const Exhibit& exhibit : exhibits) {
    const auto ranks = static_cast<int64_t>(exhibit.timeline.ranks.size());
    survey.rows += ranks;
    survey.most_ranks = std::max(survey.most_ranks, ranks);
    for (const RankTimeline& line : exhibit.timeline.ranks) {
      survey.has_communication |= !line.communications.empty();
      for (const TimedAction& timed : line.computations) {
        times.push_back(timed.end - timed.begin);
        survey.last_microbatch =
            std::max(survey.last_microbatch, timed.action.microbatch);
      }
    }
  }
  survey.computations = static_cast<int64_t>(times.size());
  if (times.empty()) return survey;
  const auto quarter = times.begin() + static_cast<ptrdiff_t>(times.size() / 4);
  std::nth_element(times.begin(), quarter, times.end());
  survey.usual = *quarter;
  return survey;
}

double RowHeight(int64_t ranks) {
  return std::clamp(640.0 / static_cast<double>(std::max<int64_t>(ranks, 1)),
                    8.0, 24.0);
}

constexpr double kLine = 20;
constexpr double kSwatch = 12;
constexpr double kCharacter = 6.6;
constexpr int64_t kMostShades = 4;

struct Entry {
  std::string words;
  std::vector<Colour> swatches;
  bool has_outline = false;
};

struct Contents {
  std::array<bool, kActionKinds.size()> kinds = {};
  bool has_pairs = false;
  bool has_optimizer = false;
  int64_t chunks = 1;
};

Contents ContentsOf(std::span<const Exhibit> exhibits) {
  Contents contents;
  for (const Exhibit& exhibit : exhibits) {
    for (const RankTimeline& line : exhibit.timeline.ranks) {
      contents.has_optimizer |= line.optimizer.end > line.optimizer.begin;
      contents.chunks = std::max(contents.chunks, Chunks(line).count());
      for (const auto* actions : {&line.computations, &line.communications}) {
        for (const TimedAction& timed : *actions) {
          contents.kinds[static_cast<size_t>(timed.action.kind)] = true;
          contents.has_pairs |= timed.action.with_next;
        }
      }
    }
  }
  return contents;
}

std::vector<Entry> EntriesOf(std::span<const Exhibit> exhibits) {
  const Contents contents = ContentsOf(exhibits);
  std::vector<Entry> entries;
  for (const ActionKind kind : kActionKinds) {
    if (!contents.kinds[static_cast<size_t>(kind)]) continue;
    const std::string words(LegendOf(kind));
    const bool is_known =
        std::any_of(entries.begin(), entries.end(),
                    [&](const Entry& entry) { return entry.words == words; });
    if (is_known) continue;
    const int64_t shades =
        Computes(kind) ? std::min(contents.chunks, kMostShades) : 1;
    Entry entry = {words, {}, false};
    for (int64_t i = 0; i < shades; ++i) {
      entry.swatches.push_back(ColourOf(kind, i, shades));
    }
    entries.push_back(std::move(entry));
  }
  if (contents.has_optimizer) {
    entries.push_back({"optimizer", {kOptimizer}, false});
  }
  if (contents.has_pairs) {
    entries.push_back({"run together", {kWhite}, true});
  }
  entries.push_back({"idle", {kIdle}, false});
  if (contents.chunks > 1) {
    entries.push_back(
        {"shades: a rank's stages, the first darkest", {}, false});
  }
  return entries;
}

double WidthOf(const Entry& entry) {
  return kSwatch * static_cast<double>(entry.swatches.size()) + 6 +
         kCharacter * static_cast<double>(entry.words.size()) + 18;
}

// The position of an entry of the legend.
struct EntryPosition {
  double x;
  double line = 0;

  void Fit(const PictureLayout& layout, double width) {
    if (x > layout.left && x + width > layout.width()) {
      x = layout.left;
      ++line;
    }
  }
};

constexpr double kSpaceAbove = 22;
constexpr double kSpaceBelow = 14;
constexpr double kMostPoints = 30000;
constexpr int64_t kMostNames = 8;

// A little above the peak.
double TopOf(int64_t peak) {
  return 1.04 * static_cast<double>(std::max<int64_t>(peak, 1));
}

class MemoryPanel {
 public:
  MemoryPanel(const PictureLayout& layout, const Exhibit& exhibit, double top,
              SvgWriter& svg)
      : layout_(layout),
        exhibit_(exhibit),
        curves_(CurvesOf(exhibit.timeline)),
        top_(top + kSpaceAbove),
        peak_(TopOf(curves_.are_bytes ? layout.bytes_peak : layout.held_peak)),
        svg_(svg) {}

  void Draw() {
    svg_.Begin("memory");
    svg_.Text({.x = layout_.left, .y = top_ - 7, .classes = "small"},
              curves_.are_bytes ? "memory" : "micro-batches held");
    DrawAxis();
    for (size_t rank = 0; rank < curves_.ranks.size(); ++rank) DrawCurve(rank);
    DrawLimit();
    DrawNames();
    svg_.End();
  }

 private:
  double YOf(double held) const {
    return top_ + layout_.curve * (1 - held / peak_);
  }
  double End() const { return layout_.XOf(layout_.extent); }
  Colour ColourOfCurve(size_t rank) const {
    return ColourOfRank(static_cast<int64_t>(rank),
                        static_cast<int64_t>(curves_.ranks.size()));
  }

  void DrawAxis() {
    for (const double tick : TicksTo(peak_, 5)) {
      if (!curves_.are_bytes && tick != std::floor(tick)) continue;
      svg_.Line(layout_.left, YOf(tick), End(), YOf(tick),
                tick == 0 ? absl::StrCat("stroke=\"", kInk.ToHex(),
                                         "\" stroke-width=\"0.8\"")
                          : absl::StrCat("stroke=\"", kIdle.ToHex(), "\""));
      svg_.Text({.x = layout_.left - 8, .y = YOf(tick) + 4, .classes = "right"},
                curves_.are_bytes ? BytesText(static_cast<int64_t>(tick))
                                  : NumberText(tick));
    }
  }

  void DrawCurve(size_t rank) {
    const double step = layout_.extent *
                        static_cast<double>(curves_.ranks.size()) / kMostPoints;
    const Curve curve =
        Thinned(curves_.ranks[rank], std::max(step, 0.25 / layout_.scale));
    std::string data =
        absl::StrCat("M", PixelText(layout_.left), " ", PixelText(YOf(0)));
    for (const MemoryChange& change : curve) {
      absl::StrAppend(&data, "H", PixelText(layout_.XOf(change.time)), "V",
                      PixelText(YOf(static_cast<double>(change.bytes))));
    }
    absl::StrAppend(&data, "H", PixelText(End()));
    const std::string_view width = curves_.ranks.size() <= 16 ? "1.5" : "0.7";
    svg_.Path(data, absl::StrCat("stroke=\"", ColourOfCurve(rank).ToHex(),
                                 "\" stroke-width=\"", width,
                                 "\" stroke-opacity=\"0.85\""));
  }

  void DrawLimit() {
    if (exhibit_.memory_limit <= 0 || !curves_.are_bytes) return;
    const double y = YOf(static_cast<double>(exhibit_.memory_limit));
    svg_.Line(layout_.left, y, End(), y,
              "stroke=\"#b00020\" stroke-width=\"1.2\" "
              "stroke-dasharray=\"6 4\"");
    svg_.Text({.x = End(), .y = y - 4, .classes = "right", .fill = "#b00020"},
              absl::StrCat("limit ", BytesText(exhibit_.memory_limit)));
  }

  // Names all ranks, or an evenly spaced selection from the first to the last.
  void DrawNames() {
    const auto ranks = static_cast<int64_t>(curves_.ranks.size());
    const int64_t names = std::min(ranks, kMostNames);
    for (int64_t i = 0; i < names; ++i) {
      const int64_t rank = names > 1 ? i * (ranks - 1) / (names - 1) : 0;
      const double y = top_ + 12 * static_cast<double>(i) + 8;
      svg_.Line(End() + 8, y - 3.5, End() + 22, y - 3.5,
                absl::StrCat("stroke=\"",
                             ColourOfCurve(static_cast<size_t>(rank)).ToHex(),
                             "\" stroke-width=\"3\""));
      svg_.Text({.x = End() + 27, .y = y, .classes = "small"},
                absl::StrCat("rank ", rank));
    }
  }

  const PictureLayout& layout_;
  const Exhibit& exhibit_;
  const Curves curves_;
  const double top_;   // Top of the curves.
  const double peak_;  // At the top.
  SvgWriter& svg_;
};

constexpr double kAxisHeight = 34;
constexpr double kLeastNameHeight = 7;
constexpr double kSeam = 0.3;  // Overlap of a run with the next one.

// The vertical part of a row that an action occupies.
struct Band {
  double top = 0;
  double height = 0;
};

class Row {
 public:
  Row(const PictureLayout& layout, const RankTimeline& line,
      const TimeUnit& unit, double top, SvgWriter& svg)
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

  // Draws the run in the mean colour of its actions, including idle time.
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

  const PictureLayout& layout_;
  const RankTimeline& line_;
  const TimeUnit& unit_;
  const double top_;
  SvgWriter& svg_;
  const Chunks chunks_;
};

void DrawAxis(const PictureLayout& layout, const TimeUnit& unit, double y,
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

std::vector<Box> BoxesOf(std::span<const TimedAction> actions, double least) {
  std::vector<Box> boxes;
  bool is_open = false;  // The last box may take more actions.
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto [action, begin, end] = actions[i];
    const bool is_narrow = end - begin < least;
    if (is_open && is_narrow && begin - boxes.back().end < least) {
      boxes.back().end = std::max(boxes.back().end, end);
      ++boxes.back().count;
    } else {
      boxes.push_back({begin, end, i, 1});
    }
    is_open = is_narrow && boxes.back().end - boxes.back().begin < least;
  }
  return boxes;
}

double WidthOf(int64_t characters, double size) {
  return 0.58 * size * static_cast<double>(characters);
}

PictureLayout LayOut(std::span<const Exhibit> exhibits) {
  const Survey survey = SurveyOf(exhibits);
  const auto digits =
      static_cast<int64_t>(absl::StrCat(survey.last_microbatch).size());
  PictureLayout layout;
  layout.extent = ExtentOf(exhibits);
  const double wanted = WidthOf(digits, kLargestNumber) + 9;
  const double natural =
      survey.usual > 0 ? layout.extent / survey.usual * wanted : kLeastWidth;
  const double width = std::clamp(natural, kLeastWidth, kMostWidth);
  layout.scale = layout.extent > 0 ? width / layout.extent : 1;
  layout.row = RowHeight(survey.most_ranks);
  layout.gap = layout.row >= 16 ? 4 : 1.5;
  if (survey.has_communication) layout.lane = layout.row >= 16 ? 5 : 2.5;
  const double room = survey.usual * layout.scale - 2;
  const double fitting = room / WidthOf(digits, 1);
  layout.number = std::min({kLargestNumber, fitting, layout.row - 3});
  layout.number = std::max(layout.number, kSmallestNumber);
  const double pixels =
      std::max(0.4, width * static_cast<double>(survey.rows) / kMostBoxes);
  layout.least = pixels / layout.scale;
  layout.has_tooltips = survey.computations <= kMostTooltips;
  for (const Exhibit& exhibit : exhibits) {
    const Curves curves = CurvesOf(exhibit.timeline);
    int64_t& peak = curves.are_bytes ? layout.bytes_peak : layout.held_peak;
    peak = std::max(peak, curves.peak);
    layout.bytes_peak = std::max(layout.bytes_peak, exhibit.memory_limit);
  }
  return layout;
}

double HeightOfLegend(const PictureLayout& layout,
                      std::span<const Exhibit> exhibits) {
  EntryPosition place = {layout.left};
  for (const Entry& entry : EntriesOf(exhibits)) {
    place.Fit(layout, WidthOf(entry));
    place.x += WidthOf(entry);
  }
  return kLine * (place.line + 1) + 8;
}

void DrawLegend(const PictureLayout& layout, std::span<const Exhibit> exhibits,
                double top, SvgWriter& svg) {
  svg.Begin("legend");
  EntryPosition place = {layout.left};
  for (const Entry& entry : EntriesOf(exhibits)) {
    place.Fit(layout, WidthOf(entry));
    const double y = top + kLine * place.line;
    double x = place.x;
    for (const Colour& colour : entry.swatches) {
      svg.Box({.x = x,
               .y = y,
               .width = kSwatch,
               .height = kSwatch,
               .fill = colour.ToHex(),
               .stroke = entry.has_outline ? kInk.ToHex() : ""});
      x += kSwatch;
    }
    svg.Text({.x = x + (entry.swatches.empty() ? 0 : 6),
              .y = y + 10.5,
              .classes = "note"},
             entry.words);
    place.x += WidthOf(entry);
  }
  svg.End();
}

double HeightOfMemoryPanel(const PictureLayout& layout) {
  return kSpaceAbove + layout.curve + kSpaceBelow;
}

void DrawMemoryPanel(const PictureLayout& layout, const Exhibit& exhibit,
                     double top, SvgWriter& svg) {
  MemoryPanel(layout, exhibit, top, svg).Draw();
}

double HeightOfRows(const PictureLayout& layout, const Timeline& timeline) {
  return layout.rank_height() * static_cast<double>(timeline.ranks.size()) +
         kAxisHeight;
}

void DrawRows(const PictureLayout& layout, const Timeline& timeline,
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
