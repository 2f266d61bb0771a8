#include "zero3/checkpoint/json_fields.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::zero3 {
namespace {

// How deep brackets outside of texts are nested, where that is well formed.
int DepthOf(std::string_view text, int most) {
  int depth = 0, deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size() && deepest <= most; ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') ++i;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// The parser's own words follow a prefix in brackets.
std::string WordsOf(const nlohmann::detail::exception& error) {
  const std::string_view text = error.what();
  const size_t prefix = text.find("] ");
  return std::string(
      text.substr(prefix == text.npos ? 0 : prefix + 2).substr(0, 200));
}

const Json& Empty() {
  static const Json* const kEmpty = new Json();
  return *kEmpty;
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, int max_depth) {
  if (DepthOf(text, max_depth) > max_depth) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON nested deeper than ", max_depth));
  }
  try {
    return Json::parse(text);
  } catch (const nlohmann::detail::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("no JSON: ", WordsOf(error)));
  }
}

JsonFields::JsonFields(const Json& json, std::string where)
    : json_(json), where_(std::move(where)) {
  if (!json.is_object()) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(where_, ": expected an object, found ", json.type_name()));
  }
}

void JsonFields::Refuse(std::string_view key, std::string_view why) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat(where_, ", key \"", key, "\": ", why));
}

const Json* JsonFields::Get(std::string_view key, Json::value_t type) {
  if (!status_.ok()) return nullptr;
  const auto found = json_.find(std::string(key));
  if (found == json_.end()) {
    Refuse(key, "it is missing");
    return nullptr;
  }
  // The parser gives numbers from 0 on another type than negative ones.
  const bool is_natural = type == Json::value_t::number_integer &&
                          found->type() == Json::value_t::number_unsigned;
  if (found->type() != type && !is_natural) {
    Refuse(key, absl::StrCat("expected ", Json(type).type_name(), ", found ",
                             found->type_name()));
    return nullptr;
  }
  return &*found;
}

int64_t JsonFields::Integer(std::string_view key, int64_t least, int64_t most) {
  const Json* const json = Get(key, Json::value_t::number_integer);
  if (json == nullptr) return least;
  const bool is_too_large =
      json->is_number_unsigned() &&
      json->get<uint64_t>() >
          static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const int64_t value = is_too_large ? -1 : json->get<int64_t>();
  if (!is_too_large && value >= least && value <= most) return value;
  Refuse(key, absl::StrCat(json->dump(), "; allowed: ", least, " to ", most));
  return least;
}

double JsonFields::Number(std::string_view key) {
  const Json* const json = Get(key, Json::value_t::number_float);
  return json == nullptr ? 0 : json->get<double>();
}

bool JsonFields::Boolean(std::string_view key) {
  const Json* const json = Get(key, Json::value_t::boolean);
  return json != nullptr && json->get<bool>();
}

std::string JsonFields::Text(std::string_view key) {
  const Json* const json = Get(key, Json::value_t::string);
  return json == nullptr ? "" : json->get<std::string>();
}

uint32_t JsonFields::Hex32(std::string_view key) {
  const absl::StatusOr<uint32_t> value = ParseHex32(Text(key));
  if (!value.ok()) Refuse(key, value.status().message());
  return value.ok() ? *value : 0;
}

const Json& JsonFields::Array(std::string_view key) {
  const Json* const json = Get(key, Json::value_t::array);
  return json == nullptr ? Empty() : *json;
}

const Json& JsonFields::Object(std::string_view key) {
  const Json* const json = Get(key, Json::value_t::object);
  return json == nullptr ? Empty() : *json;
}

std::string FormatHex32(uint32_t value) {
  return absl::StrFormat("%08x", value);
}

absl::StatusOr<uint32_t> ParseHex32(std::string_view text) {
  uint32_t value = 0;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (text.size() != 8 || (!is_digit && (c < 'a' || c > 'f'))) {
      value = 0;
      text = "";
      break;
    }
    value =
        value * 16 + static_cast<uint32_t>(is_digit ? c - '0' : c - 'a' + 10);
  }
  if (text.size() != 8) {
    return absl::InvalidArgumentError("expected 8 digits of 0-9a-f");
  }
  return value;
}

}  // namespace tessera::zero3
