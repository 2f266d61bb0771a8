#include "tools/comm_bench/report.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collectives/record/flight_recorder.h"
#include "nlohmann/json.hpp"

namespace tessera::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicro = 1e6;

double Bandwidth(const Row& row, double seconds) {
  return seconds <= 0 ? 0 : static_cast<double>(row.bytes) / seconds * 1e-9;
}

double BusBandwidth(const Row& row, double seconds) {
  return Bandwidth(row, seconds) * collectives::BusFactor(row.op, row.world);
}

std::string_view RedopOf(const Row& row) {
  return Reduces(row.op) ? ReduceOpName(row.reduction) : "none";
}

int64_t RootOf(const Row& row) { return HasRoot(row.op) ? row.root : -1; }

// time, algbw, busbw, #wrong.
std::string TextOf(const Row& row, std::optional<double> seconds) {
  if (!seconds.has_value()) {
    return absl::StrFormat("  %9s %7s %7s %6s", "N/A", "N/A", "N/A", "N/A");
  }
  const double us = *seconds * kMicro;
  return absl::StrFormat("  %9.*f %7.2f %7.2f %6s",
                         us < 100   ? 2
                         : us < 1e3 ? 1
                                    : 0,
                         us, Bandwidth(row, *seconds),
                         BusBandwidth(row, *seconds),
                         row.checked ? "0" : "N/A");
}

}  // namespace

Json RowToJson(const Row& row) {
  Json json = {{"engine", row.engine},
               {"algorithm", row.algorithm},
               {"op", OpKindName(row.op)},
               {"dtype", DTypeName(row.dtype)},
               {"world", row.world},
               {"bytes", row.bytes},
               {"iterations", row.iterations},
               {"time_us", row.seconds * kMicro},
               {"algbw_GBps", Bandwidth(row, row.seconds)},
               {"busbw_GBps", BusBandwidth(row, row.seconds)},
               {"ratio", row.ratio},
               {"count", row.bytes / SizeInBytes(row.dtype)},
               {"redop", RedopOf(row)},
               {"root", RootOf(row)},
               {"wrong", row.checked ? Json(0) : Json()},
               {"in_place_time_us", nullptr},
               {"in_place_algbw_GBps", nullptr},
               {"in_place_busbw_GBps", nullptr}};
  if (const auto seconds = row.in_place_seconds) {
    json["in_place_time_us"] = *seconds * kMicro;
    json["in_place_algbw_GBps"] = Bandwidth(row, *seconds);
    json["in_place_busbw_GBps"] = BusBandwidth(row, *seconds);
  }
  return json;
}

std::string RowToText(const Row& row, const Row* previous) {
  std::string text;
  if (previous == nullptr || previous->op != row.op ||
      previous->world != row.world) {
    text = absl::StrFormat(
        "# %s, %d ranks\n"
        "#%67s%32s\n"
        "#%11s %12s %9s %11s %5s  %9s %7s %7s %6s  %9s %7s %7s %6s %6s  "
        "engine, algorithm\n"
        "#%11s %12s %27s  %9s %7s %7s %6s  %9s %7s %7s\n",
        OpKindName(row.op), row.world, "out-of-place", "in-place", "size",
        "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong",
        "time", "algbw", "busbw", "#wrong", "ratio", "(B)", "(elements)", "",
        "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
  }
  absl::StrAppendFormat(
      &text, "%12d %12d %9s %11s %5d%s%s %6.2f  %s, %s\n", row.bytes,
      row.bytes / SizeInBytes(row.dtype), DTypeName(row.dtype), RedopOf(row),
      RootOf(row), TextOf(row, row.seconds), TextOf(row, row.in_place_seconds),
      row.ratio, row.engine, row.algorithm);
  return text;
}

}  // namespace tessera::tools
