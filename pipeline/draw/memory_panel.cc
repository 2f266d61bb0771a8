#include "pipeline/draw/memory_panel.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "pipeline/draw/curve.h"
#include "pipeline/draw/palette.h"
#include "pipeline/draw/ticks.h"

namespace tessera::pipeline {
namespace {

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
  MemoryPanel(const Layout& layout, const Exhibit& exhibit, double top,
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

  // Of all ranks, or of some evenly from the first to the last.
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

  const Layout& layout_;
  const Exhibit& exhibit_;
  const Curves curves_;
  const double top_;   // Of the curves.
  const double peak_;  // At the top.
  SvgWriter& svg_;
};

}  // namespace

double HeightOfMemoryPanel(const Layout& layout) {
  return kSpaceAbove + layout.curve + kSpaceBelow;
}

void DrawMemoryPanel(const Layout& layout, const Exhibit& exhibit, double top,
                     SvgWriter& svg) {
  MemoryPanel(layout, exhibit, top, svg).Draw();
}

}  // namespace tessera::pipeline
