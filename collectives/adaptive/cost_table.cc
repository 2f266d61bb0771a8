#include "collectives/adaptive/cost_table.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fnv1a.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::collectives {

namespace {

double LogBytes(int64_t bytes) {
  return std::log(static_cast<double>(std::max<int64_t>(bytes, 1)));
}

// Interpolates between `a` and `b`, or extrapolates.
double OnLogLine(const SizePoint& a, const SizePoint& b, int64_t bytes,
                 double slope_low, double slope_high) {
  const double width = LogBytes(b.bytes) - LogBytes(a.bytes);
  if (width <= 0) return b.value;
  const double slope = std::clamp(
      (std::log(b.value) - std::log(a.value)) / width, slope_low, slope_high);
  const SizePoint& from = bytes >= b.bytes ? b : a;
  return from.value *
         std::exp(slope * (LogBytes(bytes) - LogBytes(from.bytes)));
}

// The first point of at least `bytes` bytes.
size_t UpperIndex(std::span<const SizePoint> points, int64_t bytes) {
  const auto upper = std::lower_bound(
      points.begin(), points.end(), bytes,
      [](const SizePoint& point, int64_t b) { return point.bytes < b; });
  return static_cast<size_t>(upper - points.begin());
}

constexpr double kAnySlope = 1e9;

double Inside(std::span<const SizePoint> points, int64_t bytes) {
  const size_t upper = UpperIndex(points, bytes);
  return OnLogLine(points[upper - 1], points[upper], bytes, -kAnySlope,
                   kAnySlope);
}

constexpr double kLeast = 1e-9;

// The symbols of the formulas.
struct Letters {
  double n;
  double m;
  double p;
  double r;
  double a;
  double b;
  double g;
};

Letters LettersOf(OpKind kind, double ranks, double bytes, const Line& line,
                  double gamma) {
  return {ranks,
          bytes,
          bytes * (ranks - 1) / ranks,
          std::ceil(std::log2(ranks)),
          line.alpha,
          line.beta,
          Reduces(kind) ? gamma : 0};
}

double HalvingDoubling(OpKind kind, const Letters& x) {
  if (kind == OpKind::kReduceScatter) return x.r * x.a + x.p * (x.b + x.g);
  return 2 * x.r * x.a + 2 * x.p * x.b + x.p * x.g;
}

double Tree(OpKind kind, const Letters& x) {
  if (kind == OpKind::kGather || kind == OpKind::kScatter) {
    return x.r * x.a + x.p * x.b;
  }
  const double once = x.r * x.a + x.m * (x.b + x.g);
  return kind == OpKind::kAllReduce || kind == OpKind::kBarrier ? 2 * once
                                                                : once;
}

double Flat(Algorithm algorithm, OpKind kind, const Letters& x) {
  const bool all_reduce = kind == OpKind::kAllReduce;
  switch (algorithm) {
    case Algorithm::kRing:
      return all_reduce ? 2 * (x.n - 1) * x.a + 2 * x.p * x.b + x.p * x.g
                        : (x.n - 1) * x.a + x.p * (x.b + x.g);
    case Algorithm::kRecursiveDoubling:
      return kind == OpKind::kAllGather ? x.r * x.a + x.p * x.b
                                        : x.r * (x.a + x.m * (x.b + x.g));
    case Algorithm::kHalvingDoubling:
      return HalvingDoubling(kind, x);
    case Algorithm::kChain:
      return (all_reduce ? 2 : 1) * ((x.n - 1) * x.a + x.m * (x.b + x.g));
    case Algorithm::kBruck:
      return kind == OpKind::kAllToAll ? x.r * (x.a + x.m / 2 * x.b)
                                       : x.r * x.a + x.p * x.b;
    case Algorithm::kPairwise:
      return (x.n - 1) * x.a + x.p * (x.b + x.g);
    default:
      return Tree(kind, x);
  }
}

double Level(OpKind kind, double ranks, double bytes, const Line& line,
             double gamma) {
  if (ranks <= 1) return 0;
  const Letters letters = LettersOf(kind, ranks, bytes, line, gamma);
  const bool by_halves = kind == OpKind::kAllReduce ||
                         kind == OpKind::kReduceScatter ||
                         kind == OpKind::kAllGather;
  return by_halves ? HalvingDoubling(kind, letters) : Tree(kind, letters);
}

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "tessera collective costs";
// The version of the format and of the measurement. Increase it when an
// algorithm or the measurement changes the meaning of costs.
constexpr int64_t kVersion = 1;

constexpr size_t kMaxKeyText = 1024;
constexpr int64_t kMaxRanks = int64_t{1} << 20;
constexpr int64_t kMaxCostBytes = int64_t{1} << 40;
constexpr double kMaxSeconds = 3600;

absl::Status Refuse(std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("collective costs: ", why));
}

bool IsCost(double value) {
  return std::isfinite(value) && value >= 0 && value <= kMaxSeconds;
}

absl::Status CheckPoints(const std::vector<SizePoint>& points) {
  if (points.empty() || points.size() > kMaxCostPoints) {
    return Refuse(absl::StrCat(points.size(), " points in a curve; use 1 to ",
                               kMaxCostPoints));
  }
  int64_t last = -1;
  for (const SizePoint& point : points) {
    if (point.bytes <= last || point.bytes > kMaxCostBytes) {
      return Refuse("sizes of a curve do not ascend");
    }
    if (!IsCost(point.value) || point.value <= 0) {
      return Refuse("a time is not greater than 0 and at most an hour");
    }
    last = point.bytes;
  }
  return absl::OkStatus();
}

absl::Status CheckKey(const CostKey& key) {
  if (key.hardware.size() > kMaxKeyText || key.engine.size() > kMaxKeyText) {
    return Refuse("the names of the key are too long");
  }
  if (key.ranks < 1 || key.ranks > kMaxRanks || key.ranks_per_host < 1 ||
      key.ranks_per_host > key.ranks) {
    return Refuse("the shape of the group is out of range");
  }
  return absl::OkStatus();
}

Json LineToJson(const Line& line) {
  return {{"alpha", line.alpha}, {"beta", line.beta}};
}

// The document without version and checksum.
Json Payload(const CostTable& table) {
  Json json;
  json["hardware"] = table.key.hardware;
  json["engine"] = table.key.engine;
  json["ranks"] = table.key.ranks;
  json["ranks_per_host"] = table.key.ranks_per_host;
  json["reproducible"] = table.key.reproducible;
  json["near"] = LineToJson(table.costs.near);
  json["far"] = LineToJson(table.costs.far);
  json["gamma"] = table.costs.gamma;
  json["curves"] = Json::array();
  for (const auto& [what, points] : table.measured) {
    Json curve;
    curve["op"] = OpKindName(what.first);
    curve["algorithm"] = AlgorithmName(what.second);
    curve["bytes"] = Json::array();
    curve["seconds"] = Json::array();
    for (const SizePoint& point : points) {
      curve["bytes"].push_back(point.bytes);
      curve["seconds"].push_back(point.value);
    }
    json["curves"].push_back(std::move(curve));
  }
  return json;
}

Line ReadLine(JsonReader& costs, std::string_view name) {
  JsonReader fields = costs.Child(name);
  return {fields.Number("alpha"), fields.Number("beta")};
}

absl::Status ReadCurve(const nlohmann::json& json, std::string path,
                       CostTable* table) {
  JsonProblems problems;
  JsonReader fields(json, std::move(path), problems);
  const std::string op = fields.Text("op");
  const std::string name = fields.Text("algorithm");
  const std::vector<int64_t> bytes = fields.Integers("bytes", 0, kMaxCostBytes);
  const std::vector<double> seconds = fields.Numbers("seconds");
  if (bytes.size() != seconds.size()) {
    fields.Refuse("seconds", absl::StrCat(seconds.size(), " times for ",
                                          bytes.size(), " sizes"));
  }
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("collective costs"));
  TESSERA_ASSIGN_OR_RETURN(const OpKind kind, ParseOpKind(op));
  TESSERA_ASSIGN_OR_RETURN(const Algorithm algorithm, ParseAlgorithm(name));
  std::vector<SizePoint> points;
  for (size_t i = 0; i < bytes.size(); ++i) {
    points.push_back({bytes[i], seconds[i]});
  }
  if (table->measured.emplace(std::pair(kind, algorithm), points).second) {
    return absl::OkStatus();
  }
  return Refuse(absl::StrCat("two curves for ", op, ", ", name));
}

absl::StatusOr<CostTable> ReadPayload(const nlohmann::json& json) {
  JsonProblems problems;
  JsonReader fields(json, "costs", problems);
  CostTable table;
  table.key.hardware = fields.Text("hardware");
  table.key.engine = fields.Text("engine");
  table.key.ranks = fields.Integer("ranks", 1, kMaxRanks);
  table.key.ranks_per_host = fields.Integer("ranks_per_host", 1, kMaxRanks);
  table.key.reproducible = fields.Boolean("reproducible");
  table.costs.near = ReadLine(fields, "near");
  table.costs.far = ReadLine(fields, "far");
  table.costs.gamma = fields.Number("gamma");
  const nlohmann::json& curves = fields.Array("curves");
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("collective costs"));
  for (size_t i = 0; i < curves.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        ReadCurve(curves[i], absl::StrCat("costs.curves[", i, "]"), &table));
  }
  TESSERA_RETURN_IF_ERROR(CheckCostTable(table));
  return table;
}

}  // namespace

Line FitLine(std::span<const SizePoint> points) {
  // Minimises sum ((alpha + beta x) / y - 1)^2.
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (const SizePoint& point : points) {
    const double u = 1 / point.value;
    const double v = static_cast<double>(point.bytes) / point.value;
    aa += u * u;
    ab += u * v;
    bb += v * v;
    a += u;
    b += v;
  }
  if (aa == 0) return {};
  const double determinant = aa * bb - ab * ab;
  if (bb == 0 || determinant <= 1e-12 * aa * bb) return {a / aa, 0};
  const Line line = {(a * bb - b * ab) / determinant,
                     (b * aa - a * ab) / determinant};
  if (line.alpha < 0) return {0, b / bb};
  if (line.beta < 0) return {a / aa, 0};
  return line;
}

double CurveAt(std::span<const SizePoint> points, int64_t bytes) {
  if (points.empty()) return 0;
  if (bytes <= points.front().bytes) return points.front().value;
  if (bytes < points.back().bytes) return Inside(points, bytes);
  if (points.size() == 1) {
    return points[0].value * static_cast<double>(bytes) /
           static_cast<double>(std::max<int64_t>(points[0].bytes, 1));
  }
  return OnLogLine(points[points.size() - 2], points.back(), bytes, 0, 1);
}

double FactorAt(std::span<const SizePoint> points, int64_t bytes) {
  if (points.empty()) return 1;
  if (bytes <= points.front().bytes) return points.front().value;
  if (bytes >= points.back().bytes) return points.back().value;
  return Inside(points, bytes);
}

double FormulaSeconds(const FormulaCosts& costs, Algorithm algorithm,
                      OpKind kind, int64_t bytes, int64_t ranks,
                      int64_t ranks_per_host) {
  if (ranks <= 1) return kLeast;
  const auto n = static_cast<double>(ranks);
  const auto m = static_cast<double>(bytes);
  const auto host =
      static_cast<double>(std::clamp<int64_t>(ranks_per_host, 1, ranks));
  if (algorithm == Algorithm::kHierarchical) {
    return kLeast + Level(kind, host, m, costs.near, costs.gamma) +
           Level(kind, std::ceil(n / host), m, costs.far, costs.gamma);
  }
  const Line& line = host < n ? costs.far : costs.near;
  return kLeast +
         Flat(algorithm, kind, LettersOf(kind, n, m, line, costs.gamma));
}

absl::Status CheckCostTable(const CostTable& table) {
  TESSERA_RETURN_IF_ERROR(CheckKey(table.key));
  for (const double cost :
       {table.costs.near.alpha, table.costs.near.beta, table.costs.far.alpha,
        table.costs.far.beta, table.costs.gamma}) {
    if (!IsCost(cost)) return Refuse("a parameter is out of range");
  }
  for (const auto& [what, points] : table.measured) {
    if (!IsCollective(what.first))
      return Refuse("a curve for a kind that is not a collective");
    TESSERA_RETURN_IF_ERROR(CheckPoints(points));
  }
  return absl::OkStatus();
}

std::string CostTableToJson(const CostTable& table) {
  const Json payload = Payload(table);
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["checksum"] = absl::StrFormat("%016x", Fnv1a(DumpJson(payload)));
  json["costs"] = payload;
  return absl::StrCat(DumpJson(json), "\n");
}

absl::StatusOr<CostTable> CostTableFromJson(std::string_view text) {
  if (text.size() > kMaxCostText) {
    return Refuse(
        absl::StrCat(text.size(), " bytes; use at most ", kMaxCostText));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const nlohmann::json json,
      ParseJson(text, {.max_bytes = kMaxCostText, .max_depth = 5}),
      Annotate(_, "collective costs"));
  JsonProblems problems;
  JsonReader fields(json, "", problems);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const std::string format = fields.Text("format");
  if (fields.Integer("version", 0, kMax) != kVersion || format != kFormat) {
    return Refuse(
        absl::StrCat("not of format \"", kFormat, "\", version ", kVersion));
  }
  const std::string checksum = fields.Text("checksum");
  const nlohmann::json& costs = fields.Object("costs");
  TESSERA_RETURN_IF_ERROR(problems.ToStatus("collective costs"));
  TESSERA_ASSIGN_OR_RETURN(CostTable table, ReadPayload(costs));
  if (checksum != absl::StrFormat("%016x", Fnv1a(DumpJson(Payload(table))))) {
    return Refuse("the checksum does not match: the file is damaged");
  }
  return table;
}

}  // namespace tessera::collectives
