#include "zero3/config/zero_config_json.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "zero3/config/internal/config_fields.h"

namespace tessera::zero3 {
namespace {

using Json = nlohmann::ordered_json;
using internal::ConfigField;
using internal::Scalar;

constexpr std::string_view kExample = "an object such as {\"stage\": 3}";

// Sets the fields of a ZeroConfig as the parser comes upon them, and stops it
// at the first mistake. What is nested is refused where it opens, so that depth
// costs nothing.
class FieldSetter : public nlohmann::json_sax<Json> {
 public:
  absl::StatusOr<ZeroConfig> Result() const {
    if (!status_.ok()) return status_;
    return config_;
  }

  bool null() override { return Value(std::monostate()); }
  bool boolean(bool value) override { return Value(value); }
  bool number_integer(number_integer_t value) override { return Value(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Value(uint64_t{value});
    }
    return Value(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    return Value(value);
  }
  bool string(string_t& value) override { return Value(value); }
  bool binary(binary_t&) override { return Refuse("found binary data"); }

  bool start_object(std::size_t) override {
    if (is_open_) return Unexpected("an object");
    is_open_ = true;
    return true;
  }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return Unexpected("an array"); }
  bool end_array() override { return true; }

  bool key(string_t& name) override {
    field_ = internal::FindConfigField(name);
    if (field_ == nullptr) return Refuse(internal::UnknownField(name));
    if (std::find(given_.begin(), given_.end(), field_) != given_.end()) {
      return Refuse(absl::InvalidArgumentError(absl::StrCat(
          "key \"", field_->name, "\" comes twice; give each key once")));
    }
    given_.push_back(field_);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const std::string_view text = error.what();
    // The parser's own words follow a prefix in brackets.
    const size_t prefix = text.find("] ");
    const size_t begin = prefix == text.npos ? 0 : prefix + 2;
    return Refuse(absl::InvalidArgumentError(absl::StrCat(
        "no JSON at byte ", position, ": ", text.substr(begin, 200))));
  }

 private:
  bool Value(const Scalar& value) {
    if (field_ == nullptr) return Unexpected(internal::Describe(value));
    const absl::Status status = field_->set(value, config_);
    if (status.ok()) return true;
    return Refuse(Annotate(status, absl::StrCat("key \"", field_->name, "\"")));
  }
  bool Unexpected(std::string_view found) {
    if (field_ == nullptr) {
      return Refuse(absl::InvalidArgumentError(
          absl::StrCat("expected ", kExample, ", found ", found)));
    }
    return Refuse(absl::InvalidArgumentError(absl::StrCat(
        "key \"", field_->name, "\": expected a single value, found ", found)));
  }
  bool Refuse(std::string_view message) {
    return Refuse(absl::InvalidArgumentError(message));
  }
  bool Refuse(absl::Status status) {
    status_ = std::move(status);
    return false;
  }

  ZeroConfig config_;
  absl::Status status_ = absl::OkStatus();
  bool is_open_ = false;
  // The key whose value comes next, and all keys so far.
  const ConfigField* field_ = nullptr;
  std::vector<const ConfigField*> given_;
};

Json ToJson(const Scalar& scalar) {
  return std::visit(
      [](const auto& value) -> Json {
        using T = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else {
          return value;
        }
      },
      scalar);
}

}  // namespace

absl::StatusOr<ZeroConfig> ParseZeroConfig(std::string_view json) {
  constexpr std::string_view kWhat = "ZeRO configuration";
  if (json.size() > kMaxZeroConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(kWhat, ": ", json.size(), " bytes of JSON; at most ",
                     kMaxZeroConfigBytes, " are allowed"));
  }
  FieldSetter setter;
  // What stops the parser is in the setter's result.
  Json::sax_parse(json, &setter);
  TESSERA_ASSIGN_OR_RETURN(ZeroConfig config, setter.Result(),
                           Annotate(_, kWhat));
  return config;
}

std::string FormatZeroConfig(const ZeroConfig& config) {
  Json object = Json::object();
  for (const ConfigField& field : internal::ConfigFields()) {
    object[std::string(field.name)] = ToJson(field.get(config));
  }
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<ZeroConfig> LoadZeroConfig(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::string text,
      ReadFile(path, static_cast<int64_t>(kMaxZeroConfigBytes)));
  TESSERA_ASSIGN_OR_RETURN(ZeroConfig config, ParseZeroConfig(text),
                           Annotate(_, path));
  return config;
}

absl::Status SaveZeroConfig(const ZeroConfig& config, const std::string& path) {
  return WriteFile(path, FormatZeroConfig(config));
}

}  // namespace tessera::zero3
