#include "tools/comm_bench/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/byte_size.h"
#include "tools/comm_bench/series.h"

namespace tessera::tools {
namespace {

constexpr double kWidth = 560;   // Of the plotted area of a panel, in pixels.
constexpr double kHeight = 300;  //
constexpr double kLeft = 80;
constexpr double kTop = 40;
constexpr double kLegend = 240;
constexpr double kLine = 18;

std::string Escaped(std::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// The golden angle around the colour circle.
std::string ColourOf(size_t series) {
  return absl::StrFormat(
      "hsl(%.0f,70%%,42%%)",
      std::fmod(static_cast<double>(series) * 137.508 + 205, 360));
}

double PanelHeight(const Panel& panel) {
  const double legend = kLine * static_cast<double>(panel.series.size() + 2);
  return kTop + std::max(kHeight, legend) + 50;
}

double X(const Panel& panel, double x) {
  return kLeft +
         kWidth * (x - panel.lowest.x) / (panel.highest.x - panel.lowest.x);
}

double Y(const Panel& panel, double top, double y) {
  return top + kTop + kHeight -
         kHeight * (y - panel.lowest.y) / (panel.highest.y - panel.lowest.y);
}

void AppendText(std::string* svg, double x, double y, std::string_view anchor,
                std::string_view text) {
  absl::StrAppendFormat(
      svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y,
      anchor, Escaped(text));
}

void AppendRule(std::string* svg, double x1, double y1, double x2, double y2) {
  absl::StrAppendFormat(svg,
                        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                        "stroke=\"#ddd\"/>\n",
                        x1, y1, x2, y2);
}

// Powers of ten of time, powers of 16 of bytes.
void AppendGrid(std::string* svg, const Panel& panel, double top) {
  for (double y = std::ceil(panel.lowest.y); y <= panel.highest.y; ++y) {
    const double at = Y(panel, top, y);
    AppendRule(svg, kLeft, at, kLeft + kWidth, at);
    AppendText(svg, kLeft - 6, at + 4, "end",
               absl::StrFormat("%g us", std::pow(10, y)));
  }
  for (int64_t bytes = 1; bytes < int64_t{1} << 50; bytes *= 16) {
    const double x = std::log10(static_cast<double>(bytes));
    if (x < panel.lowest.x || x > panel.highest.x) continue;
    const double at = X(panel, x);
    AppendRule(svg, at, top + kTop, at, top + kTop + kHeight);
    AppendText(svg, at, top + kTop + kHeight + 16, "middle",
               ByteSize(bytes).ToString());
  }
}

void AppendSeries(std::string* svg, const Panel& panel, size_t index,
                  double top) {
  const Series& series = panel.series[index];
  const std::string colour = ColourOf(index);
  absl::StrAppend(svg, "<polyline fill=\"none\" stroke-width=\"1.8\" stroke=\"",
                  colour, "\" points=\"");
  for (const Point& point : series.points) {
    absl::StrAppendFormat(svg, "%.1f,%.1f ", X(panel, point.x),
                          Y(panel, top, point.y));
  }
  absl::StrAppend(svg, "\"/>\n");
  for (const Point& point : series.points) {
    absl::StrAppendFormat(
        svg,
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%s: %s, "
        "%.4g us</title></circle>\n",
        X(panel, point.x), Y(panel, top, point.y), colour, Escaped(series.name),
        ByteSize(std::llround(std::pow(10, point.x))).ToString(),
        std::pow(10, point.y));
  }
  const double x = kLeft + kWidth + 20;
  const double y = top + kTop + kLine * static_cast<double>(index + 1);
  absl::StrAppendFormat(svg,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" "
                        "height=\"4\" fill=\"%s\"/>\n",
                        x, y - 6, colour);
  AppendText(svg, x + 20, y, "start", series.name);
}

void AppendPanel(std::string* svg, const Panel& panel, double top) {
  AppendText(svg, kLeft, top + kTop - 14, "start", panel.title);
  AppendGrid(svg, panel, top);
  absl::StrAppendFormat(svg,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                        "height=\"%.1f\" fill=\"none\" stroke=\"#555\"/>\n",
                        kLeft, top + kTop, kWidth, kHeight);
  for (size_t s = 0; s < panel.series.size(); ++s) {
    AppendSeries(svg, panel, s, top);
  }
}

}  // namespace

std::string PlotSvg(std::span<const Row> rows) {
  const std::vector<Panel> panels = MakePanels(rows);
  double height = 10;
  for (const Panel& panel : panels) height += PanelHeight(panel);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
      "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kLeft + kWidth + kLegend, height);
  double top = 0;
  for (const Panel& panel : panels) {
    AppendPanel(&svg, panel, top);
    top += PanelHeight(panel);
  }
  return absl::StrCat(svg, "</svg>\n");
}

}  // namespace tessera::tools
