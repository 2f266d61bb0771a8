#include "tools/offload_bench/print.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/byte_size.h"
#include "nlohmann/json.hpp"

namespace tessera::offload_bench {
namespace {

using tools::OutputFormat;
using Json = nlohmann::ordered_json;

constexpr double kMicro = 1e6;

Json Optional(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

// Every column, in the order of kColumns.
Json Columns(const Measurement& m) {
  Json json;
  json["what"] = m.what;
  json["name"] = m.name;
  json["operation"] = m.operation;
  json["data"] = m.data;
  json["threads"] = m.threads;
  json["block_bytes"] = m.block_bytes;
  json["bytes"] = m.bytes;
  json["turns"] = m.times.turns;
  json["clock"] = std::string(TimeKindName(m.time));
  json["time_us"] = m.times.subject.seconds * kMicro;
  json["GBps"] = m.Rate();
  json["spread"] = m.times.subject.spread;
  json["limit"] = m.limit;
  json["limit_GBps"] = m.LimitRate();
  json["limit_spread"] = m.times.limit.spread;
  json["share"] = m.times.share;
  json["ratio"] = Optional(m.ratio);
  json["error"] = Optional(m.error);
  json["bytes_per_parameter"] = Optional(m.bytes_per_parameter);
  json["note"] = m.note;
  return json;
}

std::string CsvField(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_number_float()) return absl::StrCat(value.get<double>());
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::string CsvLine(const Measurement& m) {
  std::string line;
  for (const Json& value : Columns(m)) {
    absl::StrAppend(&line, line.empty() ? "" : ",", CsvField(value));
  }
  return line;
}

// "45.2 +- 3 %": the spread is of the middle half of the passes.
std::string RateText(double rate, double spread) {
  return absl::StrFormat("%8.3f %4.0f%%", rate, 100 * spread);
}

std::string Extras(const Measurement& m) {
  std::string text;
  if (m.ratio.has_value())
    absl::StrAppendFormat(&text, "  ratio %.3f", *m.ratio);
  if (m.error == 0.0) absl::StrAppend(&text, "  exact");
  if (m.error > 0.0) absl::StrAppendFormat(&text, "  error %.2g", *m.error);
  if (m.bytes_per_parameter.has_value()) {
    absl::StrAppendFormat(&text, "  %.6g B a parameter",
                          *m.bytes_per_parameter);
  }
  if (!m.note.empty()) absl::StrAppend(&text, "  ", m.note);
  return text;
}

}  // namespace

void MeasurementPrinter::Print(const Measurement& measurement) {
  switch (format_) {
    case OutputFormat::kText:
      PrintText(measurement);
      break;
    case OutputFormat::kCsv:
      if (!begun_) out_ << kColumns << "\n";
      out_ << CsvLine(measurement) << "\n";
      break;
    case OutputFormat::kJson:
      out_ << (begun_ ? ",\n" : "{\"measurements\":[\n")
           << Columns(measurement)
                  .dump(-1, ' ', false, Json::error_handler_t::replace);
      break;
  }
  begun_ = true;
  out_.flush();
}

void MeasurementPrinter::PrintText(const Measurement& m) {
  if (heading_ != m.what) {
    out_ << (begun_ ? "\n" : "") << m.what << ", by " << TimeKindName(m.time)
         << " time\n"
         << absl::StrFormat("%-24s %-7s %-30s %4s %9s %14s %14s %-6s %6s\n", "",
                            "", "", "thr.", "block", "GB/s spread",
                            "limit spread", "of", "share");
    heading_ = m.what;
  }
  out_ << absl::StrFormat("%-24s %-7s %-30s %4d %9s %14s %14s %-6s %6.3f%s\n",
                          m.name, m.operation, m.data, m.threads,
                          ByteSize(m.block_bytes).ToString(),
                          RateText(m.Rate(), m.times.subject.spread),
                          RateText(m.LimitRate(), m.times.limit.spread),
                          m.limit, m.times.share, Extras(m));
}

void MeasurementPrinter::Finish() {
  if (format_ == OutputFormat::kJson) {
    out_ << (begun_ ? "\n]}\n" : "{\"measurements\":[]}\n");
  }
  out_.flush();
}

}  // namespace tessera::offload_bench
