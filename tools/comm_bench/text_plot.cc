#include "tools/comm_bench/text_plot.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_size.h"
#include "tools/comm_bench/series.h"

namespace tessera::tools {
namespace {

constexpr int kWidth = 64;
constexpr int kHeight = 18;

char LetterOf(size_t series) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz";
  return kLetters[series % kLetters.size()];
}

int Scale(double value, double lowest, double highest, int size) {
  const double share = (value - lowest) / (highest - lowest);
  return std::clamp(static_cast<int>(std::lround(share * (size - 1))), 0,
                    size - 1);
}

std::vector<std::string> DrawPoints(const Panel& panel) {
  std::vector<std::string> lines(kHeight, std::string(kWidth, ' '));
  for (size_t s = 0; s < panel.series.size(); ++s) {
    for (const Point& point : panel.series[s].points) {
      const int x = Scale(point.x, panel.lowest.x, panel.highest.x, kWidth);
      const int y = Scale(point.y, panel.lowest.y, panel.highest.y, kHeight);
      char& cell =
          lines[static_cast<size_t>(kHeight - 1 - y)][static_cast<size_t>(x)];
      cell = cell == ' ' || cell == LetterOf(s) ? LetterOf(s) : '*';
    }
  }
  return lines;
}

std::string TimeAt(const Panel& panel, int line) {
  if (line % 4 != 0 && line != kHeight - 1) return "";
  const double share = 1.0 - static_cast<double>(line) / (kHeight - 1);
  const double us =
      std::pow(10, panel.lowest.y + share * (panel.highest.y - panel.lowest.y));
  if (us < 999.5) return absl::StrFormat("%.3g us", us);
  if (us < 999.5e3) return absl::StrFormat("%.3g ms", us * 1e-3);
  return absl::StrFormat("%.3g s", us * 1e-6);
}

std::string BytesText(double log10_bytes) {
  return ByteSize(std::llround(std::pow(10, log10_bytes))).ToString();
}

std::string PlotPanel(const Panel& panel) {
  std::string plot = absl::StrCat("\n", panel.title, "\n");
  const std::vector<std::string> lines = DrawPoints(panel);
  for (int line = 0; line < kHeight; ++line) {
    absl::StrAppendFormat(&plot, "%12s |%s\n", TimeAt(panel, line),
                          lines[static_cast<size_t>(line)]);
  }
  absl::StrAppendFormat(&plot, "%12s +%s\n", "", std::string(kWidth, '-'));
  const std::string left = BytesText(panel.lowest.x);
  absl::StrAppendFormat(&plot, "%14s%s%*s\n", "", left,
                        kWidth - static_cast<int>(left.size()),
                        BytesText(panel.highest.x));
  for (size_t s = 0; s < panel.series.size(); ++s) {
    absl::StrAppendFormat(&plot, "%14s%c  %s\n", "", LetterOf(s),
                          panel.series[s].name.substr(0, 60));
  }
  return plot;
}

}  // namespace

std::string PlotText(std::span<const Row> rows) {
  std::string plot;
  for (const Panel& panel : MakePanels(rows)) {
    absl::StrAppend(&plot, PlotPanel(panel));
  }
  return plot;
}

}  // namespace tessera::tools
