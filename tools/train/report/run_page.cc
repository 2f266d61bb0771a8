#include "tools/train/report/run_page.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/svg_writer.h"
#include "tools/train/report/html_page.h"
#include "tools/train/report/metrics_file.h"
#include "tools/train/settings/settings_table.h"

namespace tessera::train {

void StepSeries::Point::Add(const Point& other) {
  count += other.count;
  sum += other.sum;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

void StepSeries::Add(int64_t step, double value) {
  if (!std::isfinite(value) || step < 0) return;
  while (step / width_ >= static_cast<int64_t>(most_)) {
    width_ *= 2;
    std::vector<Point> pairs((points_.size() + 1) / 2);
    for (size_t i = 0; i < points_.size(); ++i) pairs[i / 2].Add(points_[i]);
    points_ = std::move(pairs);
  }
  const auto at = static_cast<size_t>(step / width_);
  if (at >= points_.size()) points_.resize(at + 1);
  points_[at].Add({1, value, value, value});
}

namespace {

using pipeline::NumberText;
using pipeline::PixelText;
using pipeline::SvgWriter;
using pipeline::XmlText;
using SeriesByKey = std::map<std::string_view, StepSeries>;

struct Curve {
  std::string_view name;
  std::string_view colour;
  std::string_view key;  // Of MetricsOf.
  double factor = 1;     // On its values.
};

struct Chart {
  std::string_view title;
  // The points of curves after the first, which may have few steps, are joined
  // over gaps.
  std::vector<Curve> curves;
  // Bars of the means on top of each other, up to 100, instead of lines.
  bool is_stacked = false;
  bool is_optional = false;  // Left out if the first curve is empty.
};

const std::vector<Chart>& Charts() {
  static const auto* const charts = new std::vector<Chart>{
      {"loss",
       {{"training", "#0072b2", "loss"},
        {"validation", "#d55e00", "eval_loss"}}},
      {.title = "tokens of the busiest expert, over the mean",
       .curves = {{"busiest", "#0072b2", "expert_imbalance"}},
       .is_optional = true},
      {.title = "largest score of attention before the softmax",
       .curves = {{"score", "#0072b2", "max_attention_score"}},
       .is_optional = true},
      {"tokens per second", {{"tokens/s", "#009e73", "tokens_per_second"}}},
      {"resident memory of the largest rank, MiB",
       {{"MiB", "#7a4a9c", "memory_bytes", 1.0 / (1 << 20)}}},
      {.title = "shares of time, % (mean over ranks)",
       .curves = {{"compute", "#0072b2", "compute", 100},
                  {"communication", "#56b4e9", "communication", 100},
                  {"bubble", "#d8dae2", "bubble", 100},
                  {"offload", "#e69f00", "offload", 100}},
       .is_stacked = true}};
  return *charts;
}

// The areas of a chart, in pixels.
constexpr double kWidth = 920, kHeight = 240;
constexpr double kLeft = 76, kRight = 16, kTop = 34, kBottom = 34;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = kHeight - kTop - kBottom;

// "steps 8 to 11", counted from 1 as in the table.
std::string StepsText(int64_t width, size_t point) {
  const int64_t first = static_cast<int64_t>(point) * width + 1;
  return width == 1 ? absl::StrCat("step ", first)
                    : absl::StrCat("steps ", first, " to ", first + width - 1);
}

class ChartPainter {
 public:
  ChartPainter(const Chart& chart, const SeriesByKey& series)
      : chart_(chart), series_(series), svg_(kWidth, kHeight, chart.title) {
    for (const Curve& curve : chart.curves) {
      const StepSeries& one = Of(curve);
      steps_ = std::max(steps_, static_cast<double>(one.points().size()) *
                                    static_cast<double>(one.width()));
    }
    if (!chart.is_stacked) FitRange();
  }

  std::string Draw() && {
    svg_.Text({.x = kLeft, .y = 22, .classes = "title"}, chart_.title);
    DrawAxes();
    DrawLegend();
    for (const Curve& curve : chart_.curves) {
      svg_.Begin(curve.name);
      chart_.is_stacked ? DrawBars(curve) : DrawLine(curve);
      svg_.End();
    }
    DrawTooltips();
    return std::move(svg_).Finish();
  }

 private:
  const StepSeries& Of(const Curve& curve) const {
    return series_.at(curve.key);
  }
  double X(double step) const { return kLeft + kPlotWidth * step / steps_; }
  double Y(double value) const {
    return kTop + kPlotHeight * (most_ - value) / (most_ - least_);
  }
  double WidthOf(const StepSeries& series) const {
    return kPlotWidth * static_cast<double>(series.width()) / steps_;
  }
  // Calls `use` for each point that has values, with its number and the middle
  // of its steps in pixels.
  template <typename Use>
  void ForEachPoint(const Curve& curve, Use use) const {
    const StepSeries& series = Of(curve);
    for (size_t i = 0; i < series.points().size(); ++i) {
      if (series.points()[i].count == 0) continue;
      use(series.points()[i], i,
          X((static_cast<double>(i) + 0.5) *
            static_cast<double>(series.width())));
    }
  }

  // The range of all values with a little room, also around a constant.
  void FitRange() {
    StepSeries::Point all;
    for (const Curve& curve : chart_.curves) {
      for (const StepSeries::Point& point : Of(curve).points()) all.Add(point);
    }
    if (all.count == 0) all = {.least = 0, .most = 1};
    const double room = all.most > all.least
                            ? 0.05 * (all.most - all.least)
                            : std::max(0.05 * std::abs(all.most), 1e-3);
    least_ = all.least - room;
    most_ = all.most + room;
  }

  void DrawAxes() {
    constexpr std::string_view kGrid = "stroke=\"#d8dae2\"";
    const double height = most_ - least_;
    const std::vector<double> ticks = pipeline::TicksTo(height, 6);
    const double unit = ticks.size() > 1 ? ticks[1] : std::max(height, 1e-300);
    const double first = std::ceil(least_ / unit);
    for (size_t i = 0; i <= ticks.size(); ++i) {
      const double value = (first + static_cast<double>(i)) * unit;
      if (value > most_) break;
      svg_.Line(kLeft, Y(value), kWidth - kRight, Y(value), kGrid);
      svg_.Text({.x = kLeft - 6, .y = Y(value) + 4, .classes = "right"},
                NumberText(value));
    }
    constexpr double kEnd = kHeight - kBottom;
    for (const double step : pipeline::TicksTo(steps_, 10)) {
      svg_.Line(X(step), kTop, X(step), kEnd, kGrid);
      svg_.Text({.x = X(step), .y = kEnd + 15, .classes = "middle"},
                NumberText(step));
    }
    svg_.Text({kLeft + kPlotWidth / 2, kHeight - 4, "middle"}, "step");
  }

  void DrawLegend() {
    double x = kWidth - kRight;
    for (size_t i = chart_.curves.size(); i-- > 0;) {
      const auto& [name, colour, key, factor] = chart_.curves[i];
      x -= 20 + 6.5 * static_cast<double>(name.size());
      svg_.Box({x, 12, 10, 10, std::string(colour)});
      svg_.Text({.x = x + 14, .y = 21, .classes = "small"}, name);
    }
  }

  // The mean as a line, with a dot where a point has no neighbour, over the
  // range of the values.
  void DrawLine(const Curve& curve) {
    const bool joins_gaps = &curve != chart_.curves.data();
    std::string line, band;
    size_t next = 0;
    ForEachPoint(curve, [&](const StepSeries::Point& point, size_t i,
                            double x) {
      const bool is_joined = !line.empty() && (joins_gaps || i == next);
      next = i + 1;
      // A line of no length is a dot, with round ends.
      absl::StrAppend(&line, is_joined ? "L" : "M", PixelText(x), " ",
                      PixelText(Y(point.mean())), is_joined ? "" : "h0");
      absl::StrAppend(&band, "M", PixelText(x), " ", PixelText(Y(point.least)),
                      "V", PixelText(Y(point.most)));
    });
    if (line.empty()) return;
    const auto stroke = [&](double width, std::string_view more) {
      return absl::StrCat("stroke=\"", curve.colour, "\" stroke-width=\"",
                          width, "\" ", more);
    };
    svg_.Path(band, stroke(3, "stroke-opacity=\"0.25\""));
    svg_.Path(line, stroke(joins_gaps ? 2.5 : 1.5,
                           "stroke-linecap=\"round\" "
                           "stroke-linejoin=\"round\""));
  }

  void DrawBars(const Curve& curve) {
    const double width = WidthOf(Of(curve));
    below_.resize(std::max(below_.size(), Of(curve).points().size()));
    ForEachPoint(curve,
                 [&](const StepSeries::Point& point, size_t i, double x) {
                   const double bottom = Y(below_[i]);
                   below_[i] += std::max(point.mean(), 0.0);
                   const double top = Y(below_[i]);
                   svg_.Box({x - width / 2, top, width, bottom - top,
                             std::string(curve.colour)});
                 });
  }

  // Invisible columns with the values as tooltips.
  void DrawTooltips() {
    const StepSeries& first = Of(chart_.curves[0]);
    std::vector<std::string> values(first.points().size());
    for (const Curve& curve : chart_.curves) {
      if (Of(curve).width() != first.width()) continue;
      ForEachPoint(
          curve, [&](const StepSeries::Point& point, size_t i, double) {
            if (i >= values.size()) return;
            absl::StrAppend(&values[i], values[i].empty() ? ": " : ", ",
                            curve.name, " ", NumberText(point.mean()));
          });
    }
    const double width = WidthOf(first);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].empty()) continue;
      svg_.Box({kLeft + width * static_cast<double>(i), kTop, width,
                kPlotHeight, "transparent"},
               StepsText(first.width(), i) + values[i]);
    }
  }

  const Chart& chart_;
  const SeriesByKey& series_;
  SvgWriter svg_;
  double steps_ = 1;               // The axes: steps from 0,
  double least_ = 0, most_ = 100;  // and values.
  std::vector<double> below_;      // The tops of the bars so far.
};

// All settings; those that differ from the default first.
std::string SettingsTables(const Settings& settings) {
  const Settings defaults;
  std::string changed, others;
  for (const SettingsField& field : SettingsFields()) {
    const std::string value = FieldText(field.name, settings);
    (value == FieldText(field.name, defaults) ? others : changed) +=
        HtmlRow(absl::StrCat("--", field.name), value);
  }
  return absl::StrCat("<h2>Settings</h2>\n", HtmlTable("changed", changed),
                      "<details><summary>defaults</summary>\n",
                      HtmlTable("defaults", others), "</details>\n");
}

}  // namespace

RunPage::RunPage(const RunPageOptions& options) : options_(options) {
  for (const Chart& chart : Charts()) {
    for (const Curve& curve : chart.curves) {
      series_.emplace(curve.key, kMostPoints);
    }
  }
}

absl::StatusOr<std::unique_ptr<RunPage>> RunPage::Open(
    const RunPageOptions& options) {
  std::unique_ptr<RunPage> page(new RunPage(options));
  TESSERA_RETURN_IF_ERROR(page->Write());
  return page;
}

void RunPage::AddEarlier(const nlohmann::json& line) {
  const auto value = [&](std::string_view key) -> std::optional<double> {
    const auto found = line.find(key);
    if (found == line.end() || !found->is_number()) return std::nullopt;
    return found->get<double>();
  };
  if (value("eval_loss")) last_eval_loss_ = value("eval_loss");
  for (const Chart& chart : Charts()) {
    for (const Curve& curve : chart.curves) {
      if (!value(curve.key)) continue;
      series_.at(curve.key).Add(line["step"], curve.factor * *value(curve.key));
    }
  }
}

absl::Status RunPage::Add(const StepMetrics& step,
                          const std::optional<RemainingEstimate>& remaining) {
  AddEarlier(MetricsOf(step));
  last_ = step.record;
  remaining_ = remaining;
  return options_.now() - written_ >= options_.interval ? Write()
                                                        : absl::OkStatus();
}

absl::Status RunPage::Finish() {
  has_ended_ = true;
  return Write();
}

absl::Status RunPage::Write() {
  TESSERA_RETURN_IF_ERROR(WriteFile(options_.path, Html()),
                          Annotate(_, absl::StrCat("--html=", options_.path)));
  written_ = options_.now();
  return absl::OkStatus();
}

std::string RunPage::Summary() const {
  const Settings& settings = options_.settings;
  const topology::MeshSizes& mesh = settings.parallel.mesh;
  std::string rows = absl::StrCat(
      HtmlRow("model",
              absl::StrFormat("%s, %.4g million parameters", settings.model,
                              static_cast<double>(options_.parameters) / 1e6)),
      HtmlRow("mesh", absl::StrCat(mesh.ToFlag(), ", ", mesh.world_size(),
                                   " ranks over ", settings.engine)),
      HtmlRow("batch", absl::StrCat(settings.batch, " sequences of ",
                                    settings.length, " tokens")),
      HtmlRow("step",
              absl::StrCat(last_ ? last_->step + 1 : 0, " of ", settings.steps,
                           has_ended_ ? ", ended" : "")));
  if (last_) rows += HtmlRow("loss", absl::StrFormat("%.4f", last_->loss));
  if (last_ && last_->rollbacks > 0) {
    rows += HtmlRow("rollbacks", absl::StrCat(last_->rollbacks));
  }
  if (last_eval_loss_) {
    rows += HtmlRow("validation loss",
                    absl::StrFormat("%.4f, perplexity %.4g", *last_eval_loss_,
                                    std::exp(*last_eval_loss_)));
  }
  if (!has_ended_) {
    rows += HtmlRow("remaining", RemainingText(remaining_));
    rows += HtmlRow("written",
                    absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", options_.now(),
                                     absl::UTCTimeZone()));
  }
  return HtmlTable("summary", rows);
}

std::string RunPage::Html() const {
  const Settings& settings = options_.settings;
  const std::string title = XmlText(
      absl::StrCat(settings.model, " on ", settings.parallel.mesh.ToFlag()));
  std::string html = absl::StrCat(
      HtmlHead(),
      has_ended_ ? "" : "<meta http-equiv=\"refresh\" content=\"10\"/>\n",
      "<title>", title, "</title>\n</head>\n<body>\n<h1>", title, "</h1>\n",
      Summary());
  for (const Chart& chart : Charts()) {
    const StepSeries& first = series_.at(chart.curves[0].key);
    if (chart.is_optional && first.points().empty()) continue;
    html += ChartPainter(chart, series_).Draw();
  }
  if (!options_.schedule.empty()) {
    absl::StrAppend(&html, "<h2>Schedule</h2>\n", options_.schedule);
  }
  absl::StrAppend(&html, SettingsTables(settings), "</body>\n</html>\n");
  return html;
}

}  // namespace tessera::train
