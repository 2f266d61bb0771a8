#include "tools/comm_bench/print.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_size.h"
#include "tools/comm_bench/regret.h"

namespace tessera::tools {
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
