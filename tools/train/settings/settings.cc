#include "tools/train/settings/settings.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/nearest_name.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/train/settings/settings_table.h"
#include "topology/config/named_enum.h"

namespace tessera::train {

std::string_view DTypeFlag(const topology::ParallelConfig& parallel) {
  return parallel.fp8 ? "fp8" : topology::EnumName(parallel.dtype);
}

int64_t StepsOfTokens(int64_t tokens, const Settings& settings) {
  if (tokens <= 0 || settings.batch <= 0 || settings.length <= 0) return 0;
  const absl::int128 samples =
      (absl::int128(tokens) + settings.length - 1) / settings.length;
  return BatchScheduleOf(settings).StepsOf(static_cast<int64_t>(samples));
}

BatchSchedule BatchScheduleOf(const Settings& settings) {
  const BatchSchedule constant = {.batch = settings.batch};
  const auto warmup = ParseBatchWarmup(settings.batch_warmup);
  if (!warmup || settings.batch % warmup->first != 0 ||
      settings.batch / warmup->first > BatchSchedule::kMostSizes) {
    return constant;
  }
  return {.batch = settings.batch,
          .first = warmup->first,
          .warmup_steps = warmup->steps};
}

namespace {

// Returns 0 for text that is not a time.
absl::Duration ParseSlurmTime(std::string_view text) {
  const std::vector<std::string_view> days = absl::StrSplit(text, '-');
  const std::vector<std::string_view> clock = absl::StrSplit(days.back(), ':');
  const size_t least = days.size() == 1 ? 2 : 3;
  if (days.size() > 2 || clock.size() < least || clock.size() > 3) return {};
  int32_t number = 0;
  absl::Duration time;
  for (const std::string_view part : clock) {
    if (!absl::SimpleAtoi(part, &number) || number < 0) return {};
    time = 60 * time + absl::Seconds(number);
  }
  if (days.size() == 1) return time;
  if (!absl::SimpleAtoi(days[0], &number) || number < 0) return {};
  return time + number * absl::Hours(24);
}

}  // namespace

absl::StatusOr<absl::Duration> ParseTimeSpan(std::string_view text) {
  absl::Duration time;
  if (!absl::ParseDuration(text, &time)) time = ParseSlurmTime(text);
  if (time > absl::ZeroDuration() && time < absl::InfiniteDuration()) {
    return time;
  }
  return absl::InvalidArgumentError(
      "must be a time above 0 with its unit, or as Slurm prints it, such as "
      "90s, 1h30m or 1-12:00:00");
}

namespace {

using Json = nlohmann::json;

absl::Status Expected(std::string_view what, const Json& found) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", what, ", found ", DescribeJson(found)));
}

absl::Status Read(const Json& json, bool& value) {
  if (!json.is_boolean()) return Expected("true or false", json);
  value = json.get<bool>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, int64_t& value) {
  const std::optional<int64_t> number = JsonInteger(json);
  if (!number) return Expected("a whole number, -2^63 to 2^63-1", json);
  value = *number;
  return absl::OkStatus();
}

absl::Status Read(const Json& json, double& value) {
  if (!json.is_number()) return Expected("a number", json);
  value = json.get<double>();
  return absl::OkStatus();
}

// The key of an object that represents a text, for bytes that are not UTF-8:
// {"percent_encoded": "caf%E9"}.
constexpr char kPercentEncoded[] = "percent_encoded";

Json TextToJson(const std::string& text) {
  Json json = text;
  if (Json::parse(DumpJson(json)) == json) return json;
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '%' || byte >= 0x80) {
      absl::StrAppend(&encoded, "%", absl::Hex(byte, absl::kZeroPad2));
    } else {
      encoded += c;
    }
  }
  return {{kPercentEncoded, encoded}};
}

absl::Status DecodePercents(std::string_view encoded, std::string& value) {
  value.clear();
  for (size_t at = 0; at < encoded.size(); ++at) {
    if (encoded[at] != '%') {
      value += encoded[at];
      continue;
    }
    const std::string_view digits = encoded.substr(at + 1, 2);
    if (digits.size() != 2 || !absl::c_all_of(digits, absl::ascii_isxdigit)) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected two hexadecimal digits after each % of ",
                       Quoted(encoded), ", such as caf%E9"));
    }
    value += absl::HexStringToBytes(digits);
    at += 2;
  }
  return absl::OkStatus();
}

absl::Status Read(const Json& json, std::string& value) {
  if (json.is_object() && json.size() == 1 && json.contains(kPercentEncoded) &&
      json[kPercentEncoded].is_string()) {
    return DecodePercents(json[kPercentEncoded].get_ref<const std::string&>(),
                          value);
  }
  if (!json.is_string()) return Expected("a text in quotes", json);
  value = json.get<std::string>();
  return absl::OkStatus();
}

absl::Status Read(const Json& json, std::vector<std::string>& value) {
  constexpr std::string_view kWhat = "a list of texts such as [\"docs\"]";
  if (!json.is_array()) return Expected(kWhat, json);
  value.clear();
  for (const Json& item : json) {
    if (!item.is_string() && !item.is_object()) return Expected(kWhat, item);
    TESSERA_RETURN_IF_ERROR(Read(item, value.emplace_back()));
  }
  return absl::OkStatus();
}

absl::Status UnknownKey(std::string_view key) {
  std::vector<std::string_view> names;
  for (const SettingsField& field : SettingsFields()) {
    names.push_back(field.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown key ", Quoted(key), "; the nearest there is: \"",
                   NearestName(key, names), "\""));
}

absl::Status CheckFinite(double value) {
  if (std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(value, " cannot be written as JSON; give a finite number"));
}

absl::Status ReadField(const Json& json, const SettingsField& field,
                       Settings& settings) {
  return std::visit(
      [&](const auto& member) -> absl::Status {
        auto given = GetField(member, settings);
        if constexpr (std::is_same_v<decltype(member), const AutomaticField&>) {
          if (const std::optional<int64_t> number = JsonInteger(json)) {
            return SetField(absl::StrCat(*number), member, settings);
          }
        }
        TESSERA_RETURN_IF_ERROR(Read(json, given));
        return SetField(given, member, settings);
      },
      field.member);
}

absl::StatusOr<Settings> SettingsOf(const Json& document) {
  if (!document.is_object()) {
    return Expected("an object such as {\"steps\": 100}", document);
  }
  Settings settings;
  for (const auto& [key, value] : document.items()) {
    // Runs of earlier versions have this key; 0 was no port.
    if (key == "prometheus_port" && value == 0) continue;
    // The same: fewer data-parallel ranks if needed.
    if (key == "elastic" && value.is_boolean()) {
      settings.min_dp = value == true ? 1 : 0;
      continue;
    }
    const SettingsField* field = FindSettingsField(key);
    if (field == nullptr) return UnknownKey(key);
    TESSERA_RETURN_IF_ERROR(
        ReadField(value, *field, settings),
        Annotate(_, absl::StrCat("key \"", field->name, "\"")));
  }
  return settings;
}

template <typename T>
Json ToJson(const T& value) {
  return value;
}
Json ToJson(const std::string& value) { return TextToJson(value); }
Json ToJson(const std::vector<std::string>& value) {
  Json list = Json::array();
  for (const std::string& text : value) list.push_back(TextToJson(text));
  return list;
}

// Formats one field. InvalidArgument if JSON cannot represent it.
absl::StatusOr<std::string> FormatField(const SettingsField& field,
                                        const Settings& settings) {
  if (const auto* one = std::get_if<AutomaticField>(&field.member)) {
    const int64_t number = settings.*one->member;
    return DumpJson(number == kAutomatic ? Json("auto") : Json(number));
  }
  if (const auto* member = std::get_if<double Settings::*>(&field.member)) {
    TESSERA_RETURN_IF_ERROR(CheckFinite(settings.**member));
  }
  return DumpJson(std::visit(
      [&](const auto& member) { return ToJson(GetField(member, settings)); },
      field.member));
}

}  // namespace

absl::StatusOr<Settings> ParseSettings(std::string_view json) {
  TESSERA_ASSIGN_OR_RETURN(
      const Json document,
      ParseJson(json, {.max_bytes = kMaxSettingsBytes, .max_depth = 3}),
      Annotate(_, "settings"));
  TESSERA_ASSIGN_OR_RETURN(Settings settings, SettingsOf(document),
                           Annotate(_, "settings"));
  return settings;
}

absl::StatusOr<std::string> FormatSettings(const Settings& settings) {
  std::string text = "{";
  for (const SettingsField& field : SettingsFields()) {
    TESSERA_ASSIGN_OR_RETURN(
        const std::string value, FormatField(field, settings),
        Annotate(_, absl::StrCat("key \"", field.name, "\"")));
    absl::StrAppend(&text, text.size() > 1 ? "," : "", "\n  \"", field.name,
                    "\": ", value);
  }
  text += "\n}\n";
  if (text.size() <= kMaxSettingsBytes) return text;
  return absl::InvalidArgumentError(
      absl::StrCat("settings of ", text.size(), " bytes of JSON; at most ",
                   kMaxSettingsBytes, " are allowed"));
}

absl::StatusOr<Settings> ReadSettings(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::string text,
      ReadFile(path, static_cast<int64_t>(kMaxSettingsBytes)));
  TESSERA_ASSIGN_OR_RETURN(Settings settings, ParseSettings(text),
                           Annotate(_, QuotedPath(path)));
  return settings;
}

absl::Status WriteSettings(const Settings& settings, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, FormatSettings(settings),
                           Annotate(_, QuotedPath(path)));
  return WriteFile(path, text);
}

}  // namespace tessera::train
