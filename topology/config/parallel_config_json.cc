#include "topology/config/parallel_config_json.h"

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
#include "topology/config/internal/config_fields.h"

namespace tessera::topology {
namespace {

using Json = nlohmann::ordered_json;
using internal::ConfigField;
using internal::Scalar;

// Takes the parser's events into a ParallelConfig. Refuses at the first value
// that is no scalar, so that nesting is never followed; returning false makes
// the parser stop.
class ConfigReader : public nlohmann::json_sax<Json> {
 public:
  const absl::Status& status() const { return status_; }
  const ParallelConfig& config() const { return config_; }

  bool null() override { return Take(std::monostate()); }
  bool boolean(bool value) override { return Take(value); }
  bool number_integer(number_integer_t value) override { return Take(value); }
  bool number_unsigned(number_unsigned_t value) override {
    constexpr auto kMax = std::numeric_limits<int64_t>::max();
    if (value > static_cast<uint64_t>(kMax)) return Take(uint64_t{value});
    return Take(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    return Take(value);
  }
  bool string(string_t& value) override { return Take(value); }
  bool binary(binary_t&) override { return Fail("found binary data"); }

  bool start_object(std::size_t) override {
    if (inside_) return Nested("an object");
    inside_ = true;
    return true;
  }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return Nested("an array"); }
  bool end_array() override { return true; }

  bool key(string_t& name) override {
    field_ = internal::FindConfigField(name);
    if (field_ == nullptr) return Fail(internal::UnknownField(name));
    if (std::find(seen_.begin(), seen_.end(), field_) != seen_.end()) {
      return Fail(absl::StrCat("key \"", field_->name,
                               "\" comes twice; give each key once"));
    }
    seen_.push_back(field_);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The parser's own words follow its "[json.exception...] " prefix.
    std::string_view reason = error.what();
    if (const size_t end = reason.find("] "); end != reason.npos) {
      reason.remove_prefix(end + 2);
    }
    return Fail(absl::StrCat("no JSON at byte ", position, ": ",
                             reason.substr(0, 200)));
  }

 private:
  bool Take(const Scalar& value) {
    if (field_ == nullptr) {
      return Fail(absl::StrCat("expected an object such as {\"dp\": 2}, found ",
                               internal::Describe(value)));
    }
    const absl::Status status = field_->set(value, config_);
    if (status.ok()) return true;
    return Fail(Annotate(status, absl::StrCat("key \"", field_->name, "\"")));
  }
  bool Nested(std::string_view what) {
    if (field_ == nullptr) {
      return Fail(
          absl::StrCat("expected an object such as {\"dp\": 2}, found ", what));
    }
    return Fail(absl::StrCat("key \"", field_->name,
                             "\": expected a number or a string, found ",
                             what));
  }
  bool Fail(std::string_view message) {
    return Fail(absl::InvalidArgumentError(message));
  }
  bool Fail(absl::Status status) {
    status_ = std::move(status);
    return false;
  }

  ParallelConfig config_;
  absl::Status status_;
  bool inside_ = false;
  const ConfigField* field_ = nullptr;
  std::vector<const ConfigField*> seen_;
};

Json ToJson(const Scalar& scalar) {
  return std::visit(
      [](const auto& value) -> Json {
        if constexpr (std::is_same_v<decltype(value), const std::monostate&>) {
          return nullptr;
        } else {
          return value;
        }
      },
      scalar);
}

}  // namespace

absl::StatusOr<ParallelConfig> ParseParallelConfig(std::string_view json) {
  constexpr std::string_view kWhat = "parallel configuration";
  if (json.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(kWhat, ": ", json.size(), " bytes of JSON; at most ",
                     kMaxConfigBytes, " are allowed"));
  }
  ConfigReader reader;
  const bool parsed = Json::sax_parse(json, &reader);
  TESSERA_RETURN_IF_ERROR(reader.status(), Annotate(_, kWhat));
  if (!parsed) {
    return absl::InvalidArgumentError(absl::StrCat(kWhat, ": no JSON"));
  }
  return reader.config();
}

std::string FormatParallelConfig(const ParallelConfig& config) {
  Json object = Json::object();
  for (const ConfigField& field : internal::ConfigFields()) {
    object[std::string(field.name)] = ToJson(field.get(config));
  }
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<ParallelConfig> LoadParallelConfig(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::string text,
      ReadFile(path, static_cast<int64_t>(kMaxConfigBytes)));
  TESSERA_ASSIGN_OR_RETURN(ParallelConfig config, ParseParallelConfig(text),
                           Annotate(_, path));
  return config;
}

absl::Status SaveParallelConfig(const ParallelConfig& config,
                                const std::string& path) {
  return WriteFile(path, FormatParallelConfig(config));
}

}  // namespace tessera::topology
