#include "pipeline/draw/legend.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "pipeline/draw/chunks.h"
#include "pipeline/draw/palette.h"

namespace tessera::pipeline {
namespace {

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

// Where an entry goes that comes after `x` on line `line`.
struct Place {
  double x;
  double line = 0;

  void Fit(const Layout& layout, double width) {
    if (x > layout.left && x + width > layout.width()) {
      x = layout.left;
      ++line;
    }
  }
};

}  // namespace

double HeightOfLegend(const Layout& layout, std::span<const Exhibit> exhibits) {
  Place place = {layout.left};
  for (const Entry& entry : EntriesOf(exhibits)) {
    place.Fit(layout, WidthOf(entry));
    place.x += WidthOf(entry);
  }
  return kLine * (place.line + 1) + 8;
}

void DrawLegend(const Layout& layout, std::span<const Exhibit> exhibits,
                double top, SvgWriter& svg) {
  svg.Begin("legend");
  Place place = {layout.left};
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

}  // namespace tessera::pipeline
