#include "tools/comm_bench/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collectives/record/flight_recorder.h"
#include "nlohmann/json.hpp"

namespace tessera::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicro = 1e6;

// Adds the columns of a time, whose names begin with `prefix`.
void AddTime(const Row& row, const std::string& prefix,
             std::optional<double> seconds, Json& json) {
  const double bytes = static_cast<double>(row.bytes);
  const double bandwidth =
      seconds.value_or(0) <= 0 ? 0 : bytes / *seconds * 1e-9;
  const double factor = collectives::BusFactor(row.op, row.world);
  const bool has = seconds.has_value();
  json[prefix + "time_us"] = has ? Json(*seconds * kMicro) : Json();
  json[prefix + "algbw_GBps"] = has ? Json(bandwidth) : Json();
  json[prefix + "busbw_GBps"] = has ? Json(bandwidth * factor) : Json();
}

// time, algbw, busbw, #wrong.
std::string TimeText(const Json& row, const std::string& prefix) {
  const Json& time = row[prefix + "time_us"];
  if (time.is_null()) {
    return absl::StrFormat("  %9s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A");
  }
  const double us = time;
  const int digits = us < 100 ? 2 : us < 1e3 ? 1 : 0;
  return absl::StrFormat("  %9.*f %7.2f %7.2f %6s", digits, us,
                         row[prefix + "algbw_GBps"].get<double>(),
                         row[prefix + "busbw_GBps"].get<double>(),
                         row["wrong"].is_null() ? "N/A" : "0");
}

}  // namespace

Json RowToJson(const Row& row) {
  Json json = {{"engine", row.engine},        {"algorithm", row.algorithm},
               {"op", OpKindName(row.op)},    {"dtype", DTypeName(row.dtype)},
               {"world", row.world},          {"bytes", row.bytes},
               {"iterations", row.iterations}};
  AddTime(row, "", row.seconds, json);
  json["ratio"] = row.ratio;
  json["count"] = row.bytes / SizeInBytes(row.dtype);
  json["redop"] = Reduces(row.op) ? ReduceOpName(row.reduction) : "none";
  json["root"] = HasRoot(row.op) ? row.root : -1;
  json["wrong"] = row.checked ? Json(0) : Json();
  AddTime(row, "in_place_", row.in_place_seconds, json);
  return json;
}

std::string RowToText(const Json& row, const Json& previous) {
  const auto text = [&](const char* column) {
    return row[column].get<std::string>();
  };
  const auto number = [&](const char* column) {
    return row[column].get<int64_t>();
  };
  std::string line;
  if (previous.is_null() || previous["op"] != row["op"] ||
      previous["world"] != row["world"]) {
    line = absl::StrFormat(
        "# %s, %d ranks\n"
        "#%67s%32s\n"
        "#%11s %12s %9s %11s %5s  %9s %7s %7s %6s  %9s %7s %7s %6s %6s  "
        "engine, algorithm\n"
        "#%11s %12s %27s  %9s %7s %7s %6s  %9s %7s %7s\n",
        text("op"), number("world"), "out-of-place", "in-place", "size",
        "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong",
        "time", "algbw", "busbw", "#wrong", "ratio", "(B)", "(elements)", "",
        "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
  }
  absl::StrAppendFormat(&line, "%12d %12d %9s %11s %5d%s%s %6.2f  %s, %s\n",
                        number("bytes"), number("count"), text("dtype"),
                        text("redop"), number("root"), TimeText(row, ""),
                        TimeText(row, "in_place_"), row["ratio"].get<double>(),
                        text("engine"), text("algorithm"));
  return line;
}

}  // namespace tessera::tools
