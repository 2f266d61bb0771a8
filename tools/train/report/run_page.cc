#include "tools/train/report/run_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/svg_writer.h"

namespace tessera::train {

void StepSeries::Add(int64_t step, double value) {
  if (!std::isfinite(value) || step < 0) return;
  while (step / width_ >= static_cast<int64_t>(most_)) {
    width_ *= 2;
    // Pairs of points become one.
    for (size_t i = 0; i < points_.size(); ++i) {
      const Point point = points_[i];
      Point& to = points_[i / 2];
      if (i % 2 == 0) to = {};
      to.count += point.count;
      to.sum += point.sum;
      to.least = std::min(to.least, point.least);
      to.most = std::max(to.most, point.most);
    }
    points_.resize((points_.size() + 1) / 2);
  }
  const auto at = static_cast<size_t>(step / width_);
  if (at >= points_.size()) points_.resize(at + 1);
  Point& point = points_[at];
  ++point.count;
  point.sum += value;
  point.least = std::min(point.least, value);
  point.most = std::max(point.most, value);
}

namespace {

using pipeline::NumberText;
using pipeline::PixelText;
using pipeline::SvgWriter;
using pipeline::XmlText;

// The areas of a chart, in pixels.
constexpr double kWidth = 920, kHeight = 240;
constexpr double kLeft = 76, kRight = 16, kTop = 34, kBottom = 34;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = kHeight - kTop - kBottom;
constexpr std::string_view kGrid = "stroke=\"#d8dae2\"";

struct Curve {
  std::string_view name;
  std::string_view colour;
  const StepSeries* series;
};

// The steps and values that a chart shows.
struct Range {
  double steps = 1;  // From 0.
  double least = 0;
  double most = 1;

  double X(double step) const { return kLeft + kPlotWidth * step / steps; }
  double Y(double value) const {
    return kTop + kPlotHeight * (most - value) / (most - least);
  }
};

double StepsIn(std::span<const Curve> curves) {
  double steps = 1;
  for (const Curve& curve : curves) {
    steps = std::max(steps, static_cast<double>(curve.series->points().size()) *
                                static_cast<double>(curve.series->width()));
  }
  return steps;
}

Range RangeOf(std::span<const Curve> curves) {
  Range range = {.steps = StepsIn(curves),
                 .least = std::numeric_limits<double>::infinity(),
                 .most = -std::numeric_limits<double>::infinity()};
  for (const Curve& curve : curves) {
    for (const StepSeries::Point& point : curve.series->points()) {
      range.least = std::min(range.least, point.least);
      range.most = std::max(range.most, point.most);
    }
  }
  if (range.least > range.most) range.least = 0, range.most = 1;
  // A little room, also around a constant.
  const double room = range.most > range.least
                          ? 0.05 * (range.most - range.least)
                          : std::max(0.05 * std::abs(range.most), 1e-3);
  range.least -= room;
  range.most += room;
  return range;
}

void DrawAxes(const Range& range, SvgWriter& svg) {
  const std::vector<double> ticks =
      pipeline::TicksTo(range.most - range.least, 6);
  const double unit =
      ticks.size() > 1 ? ticks[1] : std::max(range.most - range.least, 1e-300);
  const double first = std::ceil(range.least / unit);
  for (size_t i = 0; i <= ticks.size(); ++i) {
    const double value = (first + static_cast<double>(i)) * unit;
    if (value > range.most) break;
    svg.Line(kLeft, range.Y(value), kWidth - kRight, range.Y(value), kGrid);
    svg.Text({.x = kLeft - 6, .y = range.Y(value) + 4, .classes = "right"},
             NumberText(value));
  }
  for (const double step : pipeline::TicksTo(range.steps, 10)) {
    svg.Line(range.X(step), kTop, range.X(step), kHeight - kBottom, kGrid);
    svg.Text(
        {.x = range.X(step), .y = kHeight - kBottom + 15, .classes = "middle"},
        NumberText(step));
  }
  svg.Text({.x = kLeft + kPlotWidth / 2, .y = kHeight - 4, .classes = "middle"},
           "step");
}

void DrawLegend(std::span<const Curve> curves, SvgWriter& svg) {
  double x = kWidth - kRight;
  for (size_t i = curves.size(); i-- > 0;) {
    x -= 20 + 6.5 * static_cast<double>(curves[i].name.size());
    svg.Box({.x = x,
             .y = 12,
             .width = 10,
             .height = 10,
             .fill = std::string(curves[i].colour)});
    svg.Text({.x = x + 14, .y = 21, .classes = "small"}, curves[i].name);
  }
}

// The middle of a point's steps.
double MiddleOf(const StepSeries& series, size_t point) {
  return (static_cast<double>(point) + 0.5) *
         static_cast<double>(series.width());
}

// The mean as a line with a dot where a point has no neighbour, over the range
// of the values.
void DrawCurve(const Curve& curve, const Range& range, bool joins_gaps,
               SvgWriter& svg) {
  const auto& points = curve.series->points();
  std::string line, band;
  bool is_joined = false;
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].count == 0) {
      is_joined = is_joined && joins_gaps;
      continue;
    }
    const std::string x = PixelText(range.X(MiddleOf(*curve.series, i)));
    const std::string y = PixelText(range.Y(points[i].mean()));
    // A line of no length is a dot, with round ends.
    absl::StrAppend(&line, is_joined ? "L" : "M", x, " ", y,
                    is_joined ? "" : "h0");
    absl::StrAppend(&band, "M", x, " ", PixelText(range.Y(points[i].least)),
                    "V", PixelText(range.Y(points[i].most)));
    is_joined = true;
  }
  if (line.empty()) return;
  svg.Path(band, absl::StrCat("stroke=\"", curve.colour,
                              "\" stroke-width=\"3\" stroke-opacity=\"0.25\""));
  svg.Path(line, absl::StrCat("stroke=\"", curve.colour, "\" stroke-width=\"",
                              joins_gaps ? 2.5 : 1.5,
                              "\" stroke-linecap=\"round\" "
                              "stroke-linejoin=\"round\""));
}

// "steps 8 to 11", counted from 1 as in the table.
std::string StepsText(const StepSeries& series, size_t point) {
  const int64_t first = static_cast<int64_t>(point) * series.width() + 1;
  return series.width() == 1 ? absl::StrCat("step ", first)
                             : absl::StrCat("steps ", first, " to ",
                                            first + series.width() - 1);
}

// Invisible columns with the values as tooltips.
void DrawTooltips(std::span<const Curve> curves, const Range& range,
                  SvgWriter& svg) {
  const StepSeries& series = *curves[0].series;
  const double width =
      kPlotWidth * static_cast<double>(series.width()) / range.steps;
  for (size_t i = 0; i < series.points().size(); ++i) {
    std::string text;
    for (const Curve& curve : curves) {
      const auto& points = curve.series->points();
      if (curve.series->width() != series.width() || i >= points.size() ||
          points[i].count == 0) {
        continue;
      }
      absl::StrAppend(&text, text.empty() ? ": " : ", ", curve.name, " ",
                      NumberText(points[i].mean()));
    }
    if (text.empty()) continue;
    const double middle = range.X(MiddleOf(series, i));
    svg.Box({.x = middle - width / 2,
             .y = kTop,
             .width = width,
             .height = kPlotHeight,
             .fill = "transparent"},
            StepsText(series, i) + text);
  }
}

// `curves` is not empty; of those after the first, which are of few steps, the
// points are joined over gaps.
std::string LineChart(std::string_view title, std::span<const Curve> curves) {
  const Range range = RangeOf(curves);
  SvgWriter svg(kWidth, kHeight, title);
  svg.Text({.x = kLeft, .y = 22, .classes = "title"}, title);
  DrawAxes(range, svg);
  DrawLegend(curves, svg);
  for (const Curve& curve : curves) {
    svg.Begin(curve.name);
    DrawCurve(curve, range, &curve != curves.data(), svg);
    svg.End();
  }
  DrawTooltips(curves, range, svg);
  return std::move(svg).Finish();
}

// A bar per point in which the means stand on each other.
std::string ShareChart(std::string_view title, std::span<const Curve> curves) {
  const Range range = {.steps = StepsIn(curves), .least = 0, .most = 100};
  SvgWriter svg(kWidth, kHeight, title);
  svg.Text({.x = kLeft, .y = 22, .classes = "title"}, title);
  DrawAxes(range, svg);
  DrawLegend(curves, svg);
  const size_t count = curves[0].series->points().size();
  std::vector<double> below(count);
  for (const Curve& curve : curves) {
    const StepSeries& series = *curve.series;
    const double width =
        kPlotWidth * static_cast<double>(series.width()) / range.steps;
    svg.Begin(curve.name);
    for (size_t i = 0; i < series.points().size() && i < count; ++i) {
      if (series.points()[i].count == 0) continue;
      const double share = std::max(series.points()[i].mean(), 0.0);
      const double top = range.Y(below[i] + share);
      svg.Box({.x = range.X(MiddleOf(series, i)) - width / 2,
               .y = top,
               .width = width,
               .height = range.Y(below[i]) - top,
               .fill = std::string(curve.colour)});
      below[i] += share;
    }
    svg.End();
  }
  DrawTooltips(curves, range, svg);
  return std::move(svg).Finish();
}

std::string ValueText(const SettingsField& field, const Settings& settings) {
  return std::visit(
      [&](const auto& member) -> std::string {
        const auto value = GetField(member, settings);
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          return absl::StrJoin(value, ",");
        } else if constexpr (std::is_same_v<T, bool>) {
          return value ? "true" : "false";
        } else {
          return absl::StrCat(value);
        }
      },
      field.member);
}

std::string Row(std::string_view name, std::string_view value) {
  return absl::StrCat("<tr><th>", XmlText(name), "</th><td>", XmlText(value),
                      "</td></tr>\n");
}

// All settings; those that differ from the default first.
std::string SettingsTables(const Settings& settings) {
  const Settings defaults;
  std::string changed, others;
  for (const SettingsField& field : SettingsFields()) {
    const std::string value = ValueText(field, settings);
    std::string& table = value == ValueText(field, defaults) ? others : changed;
    table += Row(absl::StrCat("--", field.name), value);
  }
  return absl::StrCat("<h2>Settings</h2>\n<table data-name=\"changed\">\n",
                      changed,
                      "</table>\n<details><summary>defaults</summary>\n"
                      "<table data-name=\"defaults\">\n",
                      others, "</table></details>\n");
}

constexpr std::string_view kStyle =
    "body{font-family:Helvetica,Arial,sans-serif;max-width:960px;margin:1em "
    "auto;color:#1a1a20;padding:0 1em}svg{max-width:100%;height:auto;display:"
    "block;margin:0.5em 0}table{border-collapse:collapse;font-size:13px}"
    "th{text-align:left;font-weight:normal;color:#555;padding:2px 1em 2px 0;"
    "vertical-align:top}td{padding:2px 0;overflow-wrap:anywhere}"
    "h1{font-size:20px}h2{font-size:16px}";

constexpr double kMebi = 1 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<RunPage>> RunPage::Open(
    const RunPageOptions& options) {
  std::unique_ptr<RunPage> page(new RunPage(options));
  TESSERA_RETURN_IF_ERROR(page->Write());
  return page;
}

void RunPage::AddEarlier(const StepMetrics& step) {
  const int64_t at = step.record.step;
  loss_.Add(at, step.record.loss);
  if (step.record.eval_loss) {
    eval_loss_.Add(at, *step.record.eval_loss);
    last_eval_loss_ = step.record.eval_loss;
  }
  if (step.record.expert_imbalance) {
    expert_imbalance_.Add(at, *step.record.expert_imbalance);
  }
  tokens_per_second_.Add(at, step.tokens_per_second);
  memory_.Add(at, static_cast<double>(step.memory_bytes) / kMebi);
  const TimeShares& shares = step.shares;
  shares_[0].Add(at, 100 * shares.compute);
  shares_[1].Add(at, 100 * shares.communication);
  shares_[2].Add(at, 100 * shares.bubble);
  shares_[3].Add(at, 100 * shares.offload);
}

absl::Status RunPage::Add(const StepMetrics& step,
                          const std::optional<RemainingEstimate>& remaining) {
  AddEarlier(step);
  last_ = step;
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

std::string RunPage::Html() const {
  const Settings& settings = options_.settings;
  const std::string mesh = settings.parallel.mesh.ToFlag();
  const std::string title = absl::StrCat(settings.model, " on ", mesh);
  std::string html = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src "
      "'none'; style-src 'unsafe-inline'\"/>\n",
      has_ended_ ? "" : "<meta http-equiv=\"refresh\" content=\"10\"/>\n",
      "<title>", XmlText(title), "</title>\n<style>", kStyle,
      "</style>\n</head>\n<body>\n<h1>", XmlText(title),
      "</h1>\n<table data-name=\"summary\">\n");
  html += Row("model",
              absl::StrFormat("%s, %.4g million parameters", settings.model,
                              static_cast<double>(options_.parameters) / 1e6));
  html +=
      Row("mesh", absl::StrCat(mesh, ", ", settings.parallel.mesh.world_size(),
                               " ranks over ", settings.engine));
  html += Row("batch", absl::StrCat(settings.batch, " sequences of ",
                                    settings.length, " tokens"));
  if (last_) {
    html +=
        Row("step", absl::StrCat(last_->record.step + 1, " of ", settings.steps,
                                 has_ended_ ? ", ended" : ""));
    html += Row("loss", absl::StrFormat("%.4f", last_->record.loss));
  } else {
    html += Row("step", absl::StrCat("0 of ", settings.steps));
  }
  if (last_ && last_->record.rollbacks > 0) {
    html += Row("rollbacks", absl::StrCat(last_->record.rollbacks));
  }
  if (last_eval_loss_) {
    html += Row("validation loss",
                absl::StrFormat("%.4f, perplexity %.4g", *last_eval_loss_,
                                std::exp(*last_eval_loss_)));
  }
  if (!has_ended_) {
    html += Row("remaining", RemainingText(remaining_));
    html +=
        Row("written", absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", options_.now(),
                                        absl::UTCTimeZone()));
  }
  html += "</table>\n";
  const Curve losses[] = {{"training", "#0072b2", &loss_},
                          {"validation", "#d55e00", &eval_loss_}};
  html += LineChart("loss", losses);
  if (!expert_imbalance_.empty()) {
    const Curve imbalance[] = {{"busiest", "#0072b2", &expert_imbalance_}};
    html += LineChart("tokens of the busiest expert, over the mean", imbalance);
  }
  const Curve speed[] = {{"tokens/s", "#009e73", &tokens_per_second_}};
  html += LineChart("tokens per second", speed);
  const Curve memory[] = {{"MiB", "#7a4a9c", &memory_}};
  html += LineChart("resident memory of the largest rank, MiB", memory);
  const Curve shares[] = {{"compute", "#0072b2", &shares_[0]},
                          {"communication", "#56b4e9", &shares_[1]},
                          {"bubble", "#d8dae2", &shares_[2]},
                          {"offload", "#e69f00", &shares_[3]}};
  html += ShareChart("shares of time, % (mean over ranks)", shares);
  if (!options_.schedule.empty()) {
    absl::StrAppend(&html, "<h2>Schedule</h2>\n", options_.schedule);
  }
  absl::StrAppend(&html, SettingsTables(settings), "</body>\n</html>\n");
  return html;
}

}  // namespace tessera::train
