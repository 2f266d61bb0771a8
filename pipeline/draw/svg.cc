#include "pipeline/draw/svg.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "pipeline/draw/panels.h"
#include "pipeline/draw/svg_writer.h"

namespace tessera::pipeline {
namespace {

constexpr double kMargin = 14;
constexpr double kHeading = 46;
constexpr size_t kMostTitle = 120;

double HeightOf(const PictureLayout& layout, const Exhibit& exhibit) {
  return kHeading + HeightOfRows(layout, exhibit.timeline) +
         HeightOfMemoryPanel(layout) + kMargin;
}

void DrawPanel(const PictureLayout& layout, const Exhibit& exhibit,
               const TimeUnit& unit, double top, SvgWriter& svg) {
  svg.Begin("panel");
  svg.Text({.x = layout.left, .y = top + 14, .classes = "title"},
           exhibit.title.substr(0, kMostTitle));
  svg.Text({.x = layout.left, .y = top + 32, .classes = "note"},
           SummaryOf(exhibit, unit));
  svg.Text({.x = layout.XOf(layout.extent) + 8,
            .y = top + kHeading - 6,
            .classes = "small"},
           "idle");
  const double rows = top + kHeading;
  DrawRows(layout, exhibit.timeline, unit, rows, svg);
  DrawMemoryPanel(layout, exhibit,
                  rows + HeightOfRows(layout, exhibit.timeline), svg);
  svg.End();
}

std::string Description(std::span<const Exhibit> exhibits,
                        const TimeUnit& unit) {
  return absl::StrJoin(
      exhibits, "; ", [&](std::string* text, const Exhibit& exhibit) {
        absl::StrAppend(text, exhibit.title.substr(0, kMostTitle), ": ",
                        SummaryOf(exhibit, unit));
      });
}

}  // namespace

absl::StatusOr<std::string> DrawSvg(std::span<const Exhibit> exhibits,
                                    const TimeUnit& unit) {
  TESSERA_RETURN_IF_ERROR(CheckExhibits(exhibits));
  const PictureLayout layout = LayOut(exhibits);
  double height = kMargin + HeightOfLegend(layout, exhibits);
  for (const Exhibit& exhibit : exhibits) height += HeightOf(layout, exhibit);
  SvgWriter svg(layout.width(), height, Description(exhibits, unit));
  double top = kMargin;
  for (const Exhibit& exhibit : exhibits) {
    DrawPanel(layout, exhibit, unit, top, svg);
    top += HeightOf(layout, exhibit);
  }
  DrawLegend(layout, exhibits, top, svg);
  return std::move(svg).Finish();
}

}  // namespace tessera::pipeline
