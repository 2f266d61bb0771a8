#include "pipeline/draw/layout.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "pipeline/draw/curve.h"

namespace tessera::pipeline {
namespace {

constexpr double kLeastWidth = 560;  // Of the time axis.
constexpr double kMostWidth = 1640;
constexpr double kMostBoxes = 40000;
constexpr int64_t kMostTooltips = 6000;
constexpr double kLargestNumber = 12;
constexpr double kSmallestNumber = 6.5;

// What the whole picture shows.
struct Survey {
  double usual = 0;  // A quarter of the computations is shorter.
  int64_t computations = 0;
  int64_t rows = 0;        // Of all panels.
  int64_t most_ranks = 0;  // Of a panel.
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

}  // namespace

double WidthOf(int64_t characters, double size) {
  return 0.58 * size * static_cast<double>(characters);
}

Layout LayOut(std::span<const Exhibit> exhibits) {
  const Survey survey = SurveyOf(exhibits);
  const auto digits =
      static_cast<int64_t>(absl::StrCat(survey.last_microbatch).size());
  Layout layout;
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

}  // namespace tessera::pipeline
