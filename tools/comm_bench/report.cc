#include "tools/comm_bench/report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_size.h"
#include "collectives/record/flight_recorder.h"
#include "nlohmann/json.hpp"

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

using Json = nlohmann::ordered_json;

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

Json JsonOf(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json JsonOf(const Row& row) {
  Json json = {{"engine", row.engine},
               {"algorithm", row.algorithm},
               {"op", OpKindName(row.op)},
               {"dtype", DTypeName(row.dtype)},
               {"world", row.world},
               {"bytes", row.bytes},
               {"iterations", row.iterations},
               {"time_us", row.seconds * kMicro},
               {"algbw_GBps", row.AlgorithmBandwidth()},
               {"busbw_GBps", row.BusBandwidth()},
               {"ratio", row.ratio},
               {"bound_us", nullptr},
               {"share", JsonOf(row.Share())},
               {"hidden", nullptr},
               {"chosen", nullptr},
               {"regret", nullptr}};
  if (row.bound_seconds) json["bound_us"] = *row.bound_seconds * kMicro;
  if (row.overlap) json["hidden"] = row.overlap->Hidden();
  if (row.choice) json["chosen"] = row.choice->algorithm;
  if (row.choice) json["regret"] = row.choice->regret;
  return json;
}

// Names of engines may hold any bytes.
std::string TextOf(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
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
      out_ << TextOf(JsonOf(row));
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
  Json regret = Json::array();
  for (const RegretSummary& s : summaries) {
    regret.push_back({{"op", s.op},
                      {"cases", s.cases},
                      {"p95", s.p95},
                      {"max", s.max},
                      {"worst", s.worst}});
  }
  out_ << (has_begun_ ? "" : "{\"rows\":[")
       << "],\n\"regret\":" << TextOf(regret) << "}\n";
  out_.flush();
}

}  // namespace tessera::tools
