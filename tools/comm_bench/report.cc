#include "tools/comm_bench/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/byte_size.h"
#include "collectives/record/flight_recorder.h"

namespace tessera::tools {

double Overlap::Hidden() const {
  const double shorter = std::min(compute_seconds, operation_seconds);
  if (shorter <= 0) return 0;
  return (compute_seconds + operation_seconds - both_seconds) / shorter;
}

double Row::AlgorithmBandwidth() const {
  return seconds <= 0 ? 0 : static_cast<double>(bytes) / seconds * 1e-9;
}

double Row::BusBandwidth() const {
  return AlgorithmBandwidth() * collectives::BusFactor(op, world);
}

std::optional<double> Row::Share() const {
  if (!bound_seconds.has_value() || seconds <= 0) return std::nullopt;
  return *bound_seconds / seconds;
}

namespace {

std::string CaseOf(const Row& row) {
  return absl::StrCat(
      row.engine, ", ", row.world, " ranks, ", OpKindName(row.op), " of ",
      ByteSize(row.bytes).ToString(), ": ", row.choice->algorithm);
}

RegretSummary Summarise(std::string op, std::vector<const Row*> rows) {
  std::sort(rows.begin(), rows.end(), [](const Row* a, const Row* b) {
    return a->choice->regret < b->choice->regret;
  });
  RegretSummary summary;
  summary.op = std::move(op);
  summary.cases = static_cast<int64_t>(rows.size());
  // The smallest that at least 95 % of the cases do not exceed.
  summary.p95 = rows[(rows.size() * 95 + 99) / 100 - 1]->choice->regret;
  summary.max = rows.back()->choice->regret;
  summary.worst = CaseOf(*rows.back());
  return summary;
}

}  // namespace

void SetChoice(std::span<Row> rows, const std::string& engine,
               const std::string& chosen) {
  Row* first = nullptr;
  double fastest = 0;
  double taken = 0;
  for (Row& row : rows) {
    if (row.engine != engine) continue;
    if (first == nullptr) first = &row;
    fastest = fastest == 0 ? row.seconds : std::min(fastest, row.seconds);
    if (row.algorithm == chosen) taken = row.seconds;
  }
  if (first == nullptr || taken == 0 || fastest == 0) return;
  first->choice = Choice{chosen, taken / fastest};
}

std::vector<RegretSummary> SummariseRegret(std::span<const Row> rows) {
  std::map<collectives::OpKind, std::vector<const Row*>> by_op;
  std::vector<const Row*> all;
  for (const Row& row : rows) {
    if (!row.choice.has_value()) continue;
    by_op[row.op].push_back(&row);
    all.push_back(&row);
  }
  std::vector<RegretSummary> summaries;
  for (auto& [op, chosen] : by_op) {
    summaries.push_back(
        Summarise(std::string(OpKindName(op)), std::move(chosen)));
  }
  if (!all.empty()) summaries.push_back(Summarise("all", std::move(all)));
  return summaries;
}

namespace {

// log10 of bytes and of microseconds.
struct Point {
  double x = 0;
  double y = 0;
};

struct Series {
  std::string name;           // "shared_memory", "mpi ring".
  std::vector<Point> points;  // In the order of the rows.
};

// One operation, type and number of ranks.
struct Panel {
  std::string title;
  std::vector<Series> series;
  Point lowest;
  Point highest;  // Above `lowest` in both coordinates.
};

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

// A single point gets an extent of 1.
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

// Rows without bytes or time are left out.
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

// A plot on a terminal, in characters.
constexpr int kTextWidth = 64;
constexpr int kTextHeight = 18;

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
  std::vector<std::string> lines(kTextHeight, std::string(kTextWidth, ' '));
  for (size_t s = 0; s < panel.series.size(); ++s) {
    for (const Point& point : panel.series[s].points) {
      const int x = Scale(point.x, panel.lowest.x, panel.highest.x, kTextWidth);
      const int y =
          Scale(point.y, panel.lowest.y, panel.highest.y, kTextHeight);
      char& cell = lines[static_cast<size_t>(kTextHeight - 1 - y)]
                        [static_cast<size_t>(x)];
      cell = cell == ' ' || cell == LetterOf(s) ? LetterOf(s) : '*';
    }
  }
  return lines;
}

std::string TimeAt(const Panel& panel, int line) {
  if (line % 4 != 0 && line != kTextHeight - 1) return "";
  const double share = 1.0 - static_cast<double>(line) / (kTextHeight - 1);
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
  for (int line = 0; line < kTextHeight; ++line) {
    absl::StrAppendFormat(&plot, "%12s |%s\n", TimeAt(panel, line),
                          lines[static_cast<size_t>(line)]);
  }
  absl::StrAppendFormat(&plot, "%12s +%s\n", "", std::string(kTextWidth, '-'));
  const std::string left = BytesText(panel.lowest.x);
  absl::StrAppendFormat(&plot, "%14s%s%*s\n", "", left,
                        kTextWidth - static_cast<int>(left.size()),
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

namespace {

// The plotted area of an SVG panel and its margins, in pixels.
constexpr double kWidth = 560;
constexpr double kHeight = 300;
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

namespace {

constexpr double kMicro = 1e6;

std::string CsvLine(const Row& row) {
  return absl::StrFormat(
      "%s,%s,%s,%s,%d,%d,%d,%.4f,%.6g,%.6g,%.4f", row.engine, row.algorithm,
      OpKindName(row.op), DTypeName(row.dtype), row.world, row.bytes,
      row.iterations, row.seconds * kMicro, row.AlgorithmBandwidth(),
      row.BusBandwidth(), row.ratio);
}

// Four significant digits in a column of nine.
std::string TimeText(double seconds) {
  const double us = seconds * kMicro;
  if (us < 100) return absl::StrFormat("%9.2f", us);
  return absl::StrFormat(us < 1000 ? "%9.1f" : "%9.0f", us);
}

void PrintHeading(const Row& row, std::ostream& out) {
  out << OpKindName(row.op) << " of " << DTypeName(row.dtype) << ", "
      << row.world << " ranks\n"
      << "      bytes  engine         algorithm              time us  algbw "
         "GB/s  busbw GB/s   ratio   share\n";
}

std::string TextLine(const Row& row) {
  std::string line =
      absl::StrFormat("%11s  %-14s %-20s %s  %10.4g  %10.4g  %6.2f",
                      ByteSize(row.bytes).ToString(), row.engine, row.algorithm,
                      TimeText(row.seconds), row.AlgorithmBandwidth(),
                      row.BusBandwidth(), row.ratio);
  if (row.Share().has_value()) {
    absl::StrAppendFormat(&line, "  %5.0f%%", 100 * *row.Share());
  }
  if (row.overlap.has_value()) {
    absl::StrAppendFormat(&line, "  hidden %.0f%%",
                          100 * row.overlap->Hidden());
  }
  if (row.choice.has_value()) {
    absl::StrAppendFormat(&line, "  chosen %s, regret %.2f",
                          row.choice->algorithm, row.choice->regret);
  }
  return line;
}

std::string JsonNumber(std::optional<double> value) {
  return value.has_value() ? absl::StrFormat("%.6g", *value) : "null";
}

// Names of engines may be anybody's.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&quoted, "\\u%04x", c);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string Field(std::string_view name, std::string_view value) {
  return absl::StrCat(",\"", name, "\":", value);
}

}  // namespace

void RowPrinter::Print(std::span<const Row> rows) {
  if (format_ == OutputFormat::kText) {
    PrintText(rows);
  } else if (format_ == OutputFormat::kCsv) {
    if (!has_begun_) out_ << kCsvHeader << "\n";
    for (const Row& row : rows) out_ << CsvLine(row) << "\n";
  } else {
    for (const Row& row : rows) {
      out_ << (has_begun_ ? ",\n" : "{\"rows\":[\n");
      has_begun_ = true;
      PrintJson(row);
    }
  }
  has_begun_ = has_begun_ || !rows.empty();
  out_.flush();
  rows_.insert(rows_.end(), rows.begin(), rows.end());
}

void RowPrinter::PrintText(std::span<const Row> rows) {
  for (const Row& row : rows) {
    const bool is_new = rows_.empty() || row.op != rows_.back().op ||
                        row.world != rows_.back().world ||
                        row.dtype != rows_.back().dtype;
    if (is_new && &row == rows.data()) {
      if (!rows_.empty()) out_ << "\n";
      PrintHeading(row, out_);
    }
    out_ << TextLine(row) << "\n";
  }
}

void RowPrinter::PrintJson(const Row& row) {
  const auto hidden = row.overlap.has_value()
                          ? std::optional<double>(row.overlap->Hidden())
                          : std::nullopt;
  const auto bound = row.bound_seconds.has_value()
                         ? std::optional<double>(*row.bound_seconds * kMicro)
                         : std::nullopt;
  const bool chosen = row.choice.has_value();
  out_ << "{\"engine\":" << Quoted(row.engine)
       << Field("algorithm", Quoted(row.algorithm))
       << Field("op", Quoted(OpKindName(row.op)))
       << Field("dtype", Quoted(DTypeName(row.dtype)))
       << Field("world", absl::StrCat(row.world))
       << Field("bytes", absl::StrCat(row.bytes))
       << Field("iterations", absl::StrCat(row.iterations))
       << Field("time_us", JsonNumber(row.seconds * kMicro))
       << Field("algbw_GBps", JsonNumber(row.AlgorithmBandwidth()))
       << Field("busbw_GBps", JsonNumber(row.BusBandwidth()))
       << Field("ratio", JsonNumber(row.ratio))
       << Field("bound_us", JsonNumber(bound))
       << Field("share", JsonNumber(row.Share()))
       << Field("hidden", JsonNumber(hidden))
       << Field("chosen", chosen ? Quoted(row.choice->algorithm) : "null")
       << Field("regret",
                JsonNumber(chosen ? std::optional<double>(row.choice->regret)
                                  : std::nullopt))
       << "}";
}

void RowPrinter::Finish() {
  const std::vector<RegretSummary> summaries = SummariseRegret(rows_);
  if (format_ == OutputFormat::kText && !summaries.empty()) {
    out_
        << "\nregret of the adaptive choice: time of the chosen algorithm over "
           "that of the fastest\n"
        << "op              cases     p95     max  at\n";
    for (const RegretSummary& s : summaries) {
      out_ << absl::StrFormat("%-14s %6d  %6.3f  %6.3f  %s\n", s.op, s.cases,
                              s.p95, s.max, s.worst);
    }
  }
  if (format_ != OutputFormat::kJson) return;
  out_ << (has_begun_ ? "" : "{\"rows\":[") << "],\n\"regret\":[";
  const char* separator = "";
  for (const RegretSummary& s : summaries) {
    out_ << separator << "{\"op\":" << Quoted(s.op)
         << Field("cases", absl::StrCat(s.cases))
         << Field("p95", JsonNumber(s.p95)) << Field("max", JsonNumber(s.max))
         << Field("worst", Quoted(s.worst)) << "}";
    separator = ",\n";
  }
  out_ << "]}\n";
  out_.flush();
}

}  // namespace tessera::tools
