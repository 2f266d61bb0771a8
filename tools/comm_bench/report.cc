#include "tools/comm_bench/report.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_size.h"
#include "base/json/json.h"
#include "collectives/record/flight_recorder.h"
#include "nlohmann/json.hpp"

namespace tessera::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicro = 1e6;

template <typename T>
Json JsonOf(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

// "all_reduce", or "all_reduce:max".
std::string OpOf(const Row& row) {
  return absl::StrCat(OpKindName(row.op), row.reduction.empty() ? "" : ":",
                      row.reduction);
}

std::string CaseOf(const Row& row) {
  return absl::StrCat(row.engine, ", ", row.world, " ranks, ", OpOf(row),
                      " of ", ByteSize(row.bytes).ToString(), ": ",
                      *row.chosen);
}

RegretSummary Summarise(std::string_view op, std::vector<const Row*> rows) {
  std::sort(rows.begin(), rows.end(),
            [](const Row* a, const Row* b) { return a->regret < b->regret; });
  // The smallest that at least 95 % of the cases do not exceed.
  const Row& p95 = *rows[(rows.size() * 95 + 99) / 100 - 1];
  return {.op = std::string(op),
          .cases = static_cast<int64_t>(rows.size()),
          .p95 = p95.regret,
          .max = rows.back()->regret,
          .worst = CaseOf(*rows.back())};
}

std::string CsvLine(const Row& row) {
  return absl::StrFormat(
      "%s,%s,%s,%s,%d,%d,%d,%.4f,%.6g,%.6g,%.4f\n", row.engine, row.algorithm,
      OpOf(row), DTypeName(row.dtype), row.world, row.bytes, row.iterations,
      row.seconds * kMicro, row.AlgorithmBandwidth(), row.BusBandwidth(),
      row.ratio);
}

// Four significant digits in a column of nine.
std::string TimeText(double seconds) {
  const double us = seconds * kMicro;
  if (us < 100) return absl::StrFormat("%9.2f", us);
  return absl::StrFormat(us < 1000 ? "%9.1f" : "%9.0f", us);
}

std::string TextLine(const Row& row) {
  std::string line =
      absl::StrFormat("%11s  %-14s %-20s %s  %10.4g  %10.4g  %6.2f",
                      ByteSize(row.bytes).ToString(), row.engine, row.algorithm,
                      TimeText(row.seconds), row.AlgorithmBandwidth(),
                      row.BusBandwidth(), row.ratio);
  if (row.Share())
    absl::StrAppendFormat(&line, "  %5.0f%%", 100 * *row.Share());
  if (row.hidden) {
    absl::StrAppendFormat(&line, "  hidden %.0f%%", 100 * *row.hidden);
  }
  if (row.chosen) {
    absl::StrAppendFormat(&line, "  chosen %s, regret %.2f", *row.chosen,
                          row.regret);
  }
  return line + "\n";
}

void PrintRegretText(const std::vector<RegretSummary>& summaries,
                     std::ostream& out) {
  if (summaries.empty()) return;
  out << "\nregret of the adaptive choice: time of the chosen algorithm over "
         "that of the fastest\n"
      << "op              cases     p95     max  at\n";
  for (const RegretSummary& s : summaries) {
    out << absl::StrFormat("%-14s %6d  %6.3f  %6.3f  %s\n", s.op, s.cases,
                           s.p95, s.max, s.worst);
  }
}

}  // namespace

double HiddenShare(double compute, double operation, double both) {
  const double shorter = std::min(compute, operation);
  return shorter <= 0 ? 0 : (compute + operation - both) / shorter;
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

Json RowToJson(const Row& row) {
  Json json = {{"engine", row.engine},
               {"algorithm", row.algorithm},
               {"op", OpKindName(row.op)},
               {"dtype", DTypeName(row.dtype)},
               {"reduction", row.reduction},
               {"world", row.world},
               {"bytes", row.bytes},
               {"iterations", row.iterations},
               {"time_us", row.seconds * kMicro},
               {"algbw_GBps", row.AlgorithmBandwidth()},
               {"busbw_GBps", row.BusBandwidth()},
               {"ratio", row.ratio},
               {"bound_us", nullptr},
               {"share", JsonOf(row.Share())},
               {"hidden", JsonOf(row.hidden)},
               {"chosen", JsonOf(row.chosen)},
               {"regret", nullptr}};
  if (row.bound_seconds) json["bound_us"] = *row.bound_seconds * kMicro;
  if (row.chosen) json["regret"] = row.regret;
  return json;
}

Row RowFromJson(const Json& json) {
  Row row = {.engine = json.at("engine"),
             .algorithm = json.at("algorithm"),
             .op = *collectives::ParseOpKind(std::string(json.at("op"))),
             .dtype = *ParseDType(std::string(json.at("dtype"))),
             .reduction = json.at("reduction"),
             .world = json.at("world"),
             .bytes = json.at("bytes"),
             .iterations = json.at("iterations"),
             .seconds = json.at("time_us").get<double>() / kMicro,
             .ratio = json.at("ratio")};
  if (const Json& bound = json.at("bound_us"); !bound.is_null()) {
    row.bound_seconds = bound.get<double>() / kMicro;
  }
  if (!json.at("hidden").is_null()) row.hidden = json.at("hidden");
  if (!json.at("chosen").is_null()) {
    row.chosen = json.at("chosen");
    row.regret = json.at("regret");
  }
  return row;
}

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
  first->chosen = chosen;
  first->regret = taken / fastest;
}

std::vector<RegretSummary> SummariseRegret(std::span<const Row> rows) {
  std::map<collectives::OpKind, std::vector<const Row*>> by_op;
  std::vector<const Row*> all;
  for (const Row& row : rows) {
    if (!row.chosen.has_value()) continue;
    by_op[row.op].push_back(&row);
    all.push_back(&row);
  }
  std::vector<RegretSummary> summaries;
  for (const auto& [op, chosen] : by_op) {
    summaries.push_back(Summarise(OpKindName(op), chosen));
  }
  if (!all.empty()) summaries.push_back(Summarise("all", all));
  return summaries;
}

void RowPrinter::Print(std::span<const Row> rows) {
  for (const Row& row : rows) {
    if (format_ == OutputFormat::kText) {
      PrintText(row);
    } else if (format_ == OutputFormat::kCsv) {
      if (rows_.empty()) out_ << kCsvHeader << "\n";
      out_ << CsvLine(row);
    } else {
      out_ << (rows_.empty() ? "{\"rows\":[\n" : ",\n")
           << DumpJson(RowToJson(row));
    }
    rows_.push_back(row);
  }
  out_.flush();
}

void RowPrinter::PrintText(const Row& row) {
  if (rows_.empty() || OpOf(row) != OpOf(rows_.back()) ||
      row.world != rows_.back().world || row.dtype != rows_.back().dtype) {
    out_ << (rows_.empty() ? "" : "\n") << OpOf(row) << " of "
         << DTypeName(row.dtype) << ", " << row.world << " ranks\n"
         << "      bytes  engine         algorithm              time us  algbw "
            "GB/s  busbw GB/s   ratio   share\n";
  }
  out_ << TextLine(row);
}

void RowPrinter::Finish() {
  const std::vector<RegretSummary> summaries = SummariseRegret(rows_);
  if (format_ == OutputFormat::kText) PrintRegretText(summaries, out_);
  if (format_ != OutputFormat::kJson) return;
  Json regret = Json::array();
  for (const RegretSummary& s : summaries) {
    regret.push_back({{"op", s.op},
                      {"cases", s.cases},
                      {"p95", s.p95},
                      {"max", s.max},
                      {"worst", s.worst}});
  }
  out_ << (rows_.empty() ? "{\"rows\":[" : "")
       << "],\n\"regret\":" << DumpJson(regret) << "}\n";
  out_.flush();
}

}  // namespace tessera::tools
