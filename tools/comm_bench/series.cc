#include "tools/comm_bench/series.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace tessera::tools {
namespace {

std::string SeriesName(const Row& row) {
  if (row.algorithm == "engine") return row.engine;
  return absl::StrCat(row.engine, " ", row.algorithm);
}

template <typename T, typename Name>
T& FindOrAdd(std::vector<T>& items, const std::string& name, Name T::*field) {
  const auto found =
      std::find_if(items.begin(), items.end(),
                   [&](const T& item) { return item.*field == name; });
  if (found != items.end()) return *found;
  items.emplace_back();
  items.back().*field = name;
  return items.back();
}

// A point alone would have no extent.
void SetExtent(Panel* panel) {
  panel->lowest = panel->highest = panel->series[0].points[0];
  for (const Series& series : panel->series) {
    for (const Point& point : series.points) {
      panel->lowest.x = std::min(panel->lowest.x, point.x);
      panel->lowest.y = std::min(panel->lowest.y, point.y);
      panel->highest.x = std::max(panel->highest.x, point.x);
      panel->highest.y = std::max(panel->highest.y, point.y);
    }
  }
  if (panel->highest.x <= panel->lowest.x) panel->highest.x += 1;
  if (panel->highest.y <= panel->lowest.y) panel->highest.y += 1;
}

}  // namespace

std::vector<Panel> MakePanels(std::span<const Row> rows) {
  std::vector<Panel> panels;
  for (const Row& row : rows) {
    if (row.bytes <= 0 || row.seconds <= 0) continue;
    const std::string title =
        absl::StrCat(OpKindName(row.op), " of ", DTypeName(row.dtype), ", ",
                     row.world, " ranks");
    Panel& panel = FindOrAdd(panels, title, &Panel::title);
    FindOrAdd(panel.series, SeriesName(row), &Series::name)
        .points.push_back({std::log10(static_cast<double>(row.bytes)),
                           std::log10(row.seconds * 1e6)});
  }
  for (Panel& panel : panels) SetExtent(&panel);
  return panels;
}

}  // namespace tessera::tools
