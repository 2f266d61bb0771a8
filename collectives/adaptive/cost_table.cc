#include "collectives/adaptive/cost_table.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera::collectives {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "tessera collective costs";
// Of the format, and of what measured: raised whenever an algorithm or the way
// of measuring changes what costs mean.
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
    return Refuse(absl::StrCat(points.size(), " points of a curve; 1 to ",
                               kMaxCostPoints, " are allowed"));
  }
  int64_t last = -1;
  for (const SizePoint& point : points) {
    if (point.bytes <= last || point.bytes > kMaxCostBytes) {
      return Refuse("sizes of a curve do not ascend");
    }
    if (!IsCost(point.value) || point.value <= 0) {
      return Refuse("a time is not above 0 and at most an hour");
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

// FNV-1a (Fowler, Noll and Vo; RFC draft-eastlake-fnv): finds damage, proves
// nothing.
uint64_t ChecksumOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

Json LineToJson(const Line& line) {
  return {{"alpha", line.alpha}, {"beta", line.beta}};
}

// Everything but version and checksum.
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

// Text that is no UTF-8 (a host's name, say) must not throw.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string PayloadText(const CostTable& table) { return Dump(Payload(table)); }

// Takes typed fields out of an object; remembers whether all were there.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  bool ok() const { return ok_; }

  std::string Text(const char* name) {
    const Json* field = Find(name);
    ok_ = ok_ && field != nullptr && field->is_string();
    return ok_ ? field->get<std::string>() : "";
  }
  int64_t Integer(const char* name) {
    const Json* field = Find(name);
    ok_ = ok_ && field != nullptr && IsInteger(*field);
    return ok_ ? field->get<int64_t>() : 0;
  }
  bool Boolean(const char* name) {
    const Json* field = Find(name);
    ok_ = ok_ && field != nullptr && field->is_boolean();
    return ok_ && field->get<bool>();
  }
  double Number(const char* name) {
    const Json* field = Find(name);
    ok_ = ok_ && field != nullptr && field->is_number();
    return ok_ ? field->get<double>() : 0;
  }
  Line LineOf(const char* name) {
    const Json* field = Find(name);
    ok_ = ok_ && field != nullptr && field->is_object();
    if (!ok_) return {};
    Fields fields(*field);
    const Line line = {fields.Number("alpha"), fields.Number("beta")};
    ok_ = fields.ok();
    return line;
  }
  // Null where it is missing or has more than `most` elements.
  const Json* Array(const char* name, size_t most) {
    const Json* field = Find(name);
    ok_ = ok_ && field != nullptr && field->is_array() && field->size() <= most;
    return ok_ ? field : nullptr;
  }

  static bool IsInteger(const Json& json) {
    return json.is_number_integer() &&
           (!json.is_number_unsigned() ||
            json.get<uint64_t>() <= uint64_t{INT64_MAX});
  }

 private:
  const Json* Find(const char* name) const {
    const auto found = json_.find(name);
    return found == json_.end() ? nullptr : &*found;
  }

  const Json& json_;
  bool ok_ = true;
};

absl::Status ReadCurve(const Json& json, CostTable* table) {
  if (!json.is_object()) return Refuse("a curve is no object");
  Fields fields(json);
  const std::string op = fields.Text("op");
  const std::string name = fields.Text("algorithm");
  const Json* bytes = fields.Array("bytes", kMaxCostPoints);
  const Json* seconds = fields.Array("seconds", kMaxCostPoints);
  if (!fields.ok() || bytes->size() != seconds->size()) {
    return Refuse("a curve lacks op, algorithm, bytes or seconds");
  }
  TESSERA_ASSIGN_OR_RETURN(const OpKind kind, ParseOpKind(op));
  TESSERA_ASSIGN_OR_RETURN(const Algorithm algorithm, ParseAlgorithm(name));
  std::vector<SizePoint> points;
  for (size_t i = 0; i < bytes->size(); ++i) {
    if (!Fields::IsInteger((*bytes)[i]) || !(*seconds)[i].is_number()) {
      return Refuse("a curve holds something other than numbers");
    }
    points.push_back({(*bytes)[i].get<int64_t>(), (*seconds)[i].get<double>()});
  }
  if (table->measured.emplace(std::pair(kind, algorithm), points).second) {
    return absl::OkStatus();
  }
  return Refuse("a curve is there twice");
}

absl::StatusOr<CostTable> ReadPayload(const Json& json) {
  if (!json.is_object()) return Refuse("no costs");
  Fields fields(json);
  CostTable table;
  table.key.hardware = fields.Text("hardware");
  table.key.engine = fields.Text("engine");
  table.key.ranks = fields.Integer("ranks");
  table.key.ranks_per_host = fields.Integer("ranks_per_host");
  table.key.reproducible = fields.Boolean("reproducible");
  table.costs.near = fields.LineOf("near");
  table.costs.far = fields.LineOf("far");
  table.costs.gamma = fields.Number("gamma");
  const Json* curves =
      fields.Array("curves", kCollectiveKinds.size() * kAllAlgorithms.size());
  if (!fields.ok()) return Refuse("a field is missing or of another type");
  for (const Json& curve : *curves) {
    TESSERA_RETURN_IF_ERROR(ReadCurve(curve, &table));
  }
  TESSERA_RETURN_IF_ERROR(CheckCostTable(table));
  return table;
}

}  // namespace

absl::Status CheckCostTable(const CostTable& table) {
  TESSERA_RETURN_IF_ERROR(CheckKey(table.key));
  for (const double cost :
       {table.costs.near.alpha, table.costs.near.beta, table.costs.far.alpha,
        table.costs.far.beta, table.costs.gamma}) {
    if (!IsCost(cost)) return Refuse("a parameter is out of range");
  }
  for (const auto& [what, points] : table.measured) {
    if (!IsCollective(what.first)) return Refuse("a curve of no collective");
    TESSERA_RETURN_IF_ERROR(CheckPoints(points));
  }
  return absl::OkStatus();
}

std::string CostTableToJson(const CostTable& table) {
  const Json payload = Payload(table);
  Json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["checksum"] = absl::StrFormat("%016x", ChecksumOf(Dump(payload)));
  json["costs"] = payload;
  return absl::StrCat(Dump(json), "\n");
}

absl::StatusOr<CostTable> CostTableFromJson(std::string_view text) {
  if (text.size() > kMaxCostText) {
    return Refuse(absl::StrCat(text.size(), " bytes; at most ", kMaxCostText,
                               " are allowed"));
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Refuse("the text is no JSON object");
  Fields fields(json);
  if (fields.Text("format") != kFormat ||
      fields.Integer("version") != kVersion) {
    return Refuse(
        absl::StrCat("not of format \"", kFormat, "\", version ", kVersion));
  }
  const std::string checksum = fields.Text("checksum");
  const auto costs = json.find("costs");
  if (!fields.ok() || costs == json.end()) return Refuse("no costs");
  TESSERA_ASSIGN_OR_RETURN(CostTable table, ReadPayload(*costs));
  if (checksum != absl::StrFormat("%016x", ChecksumOf(PayloadText(table)))) {
    return Refuse("the checksum does not fit: the file is damaged");
  }
  return table;
}

}  // namespace tessera::collectives
