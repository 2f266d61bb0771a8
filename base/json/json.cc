#include "base/json/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using nlohmann::json;

constexpr size_t kShownProblems = 20;
constexpr size_t kShownKeyBytes = 40;

// Builds the document from the parser's events. Returning false stops the
// parser.
class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  const absl::Status& status() const { return status_; }
  json Take() { return std::move(root_); }

  bool null() override { return Put(nullptr) != nullptr; }
  bool boolean(bool value) override { return Put(value) != nullptr; }
  bool number_integer(number_integer_t value) override {
    return Put(value) != nullptr;
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Put(value) != nullptr;
  }
  bool number_float(number_float_t value, const string_t&) override {
    return Put(value) != nullptr;
  }
  bool string(string_t& value) override {
    return Put(std::move(value)) != nullptr;
  }
  bool binary(binary_t&) override { return Fail("found binary data"); }
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    const auto [place, is_new] = open_.back()->emplace(name, nullptr);
    if (!is_new && limits_.dialect == JsonDialect::kStrict) {
      return Fail(absl::StrCat("key ", Quoted(name),
                               " comes twice in an object; give it once"));
    }
    place_ = &place.value();
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The parser's message follows "[json.exception...] ".
    std::string_view reason = error.what();
    if (const size_t end = reason.find("] "); end != reason.npos) {
      reason.remove_prefix(end + 2);
    }
    return Fail(absl::StrCat("invalid JSON at byte ", position, ": ",
                             absl::CHexEscape(reason.substr(0, 200))));
  }

 private:
  // The address of the stored value, never null.
  json* Put(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *place_ = std::move(value);
    return place_;
  }
  bool Open(json value) {
    if (open_.size() == limits_.max_depth) {
      return Fail(absl::StrCat("objects and arrays are nested more than ",
                               limits_.max_depth, " deep"));
    }
    open_.push_back(Put(std::move(value)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Fail(std::string_view message) {
    status_ = absl::InvalidArgumentError(message);
    return false;
  }

  const JsonLimits limits_;
  json root_;
  std::vector<json*> open_;
  json* place_ = nullptr;  // The value of the last key.
  absl::Status status_;
};

absl::StatusOr<json> Build(std::string_view text, const JsonLimits& limits) {
  Builder builder(limits);
  const bool parsed = json::sax_parse(text, &builder);
  TESSERA_RETURN_IF_ERROR(builder.status());
  if (!parsed) return absl::InvalidArgumentError("invalid JSON");
  return builder.Take();
}

// Implements StrictJson.
class Rewriter {
 public:
  explicit Rewriter(std::string_view text) : rest_(text) {}

  std::string Run() {
    while (!rest_.empty()) {
      if (rest_[0] == '"') {
        String();
      } else if (rest_[0] == '-' || absl::ascii_isdigit(rest_[0])) {
        Number();
      } else if (!Replace("NaN", "null") && !Replace("Infinity", "null")) {
        Copy(1);
      }
    }
    return std::move(result_);
  }

 private:
  void Copy(size_t count) {
    result_ += rest_.substr(0, count);
    rest_.remove_prefix(std::min(count, rest_.size()));
  }
  bool Replace(std::string_view from, std::string_view to) {
    if (!absl::StartsWith(rest_, from)) return false;
    result_ += to;
    rest_.remove_prefix(from.size());
    return true;
  }

  void Number() {
    if (Replace("-Infinity", "null")) return;
    const std::string_view number =
        rest_.substr(0, rest_.find_first_not_of("+-.0123456789Ee"));
    // Keeps a part that is as valid as the number and small.
    const std::string_view part =
        number.substr(0, std::min<size_t>(number.find_first_of("eE"), 300));
    double value = 0;
    if (absl::SimpleAtod(number, &value) && std::isinf(value) &&
        json::accept(part)) {
      Replace(number, "null");
    } else {
      Copy(number.size());
    }
  }

  void String() {
    Copy(1);
    while (!rest_.empty() && rest_[0] != '"') {
      if (rest_[0] == '\\') {
        Escape();
      } else if (rest_.size() >= 3 && rest_[0] == '\xed' &&
                 (rest_[1] & 0xe0) == 0xa0 && (rest_[2] & 0xc0) == 0x80) {
        Replace(rest_.substr(0, 3), kReplacement);  // A surrogate in UTF-8.
      } else {
        Copy(1);
      }
    }
    Copy(1);
  }

  void Escape() {
    const uint32_t first = Surrogate(rest_);
    if (first == 0) return Copy(2);
    const bool is_pair =
        first < kLowSurrogate && Surrogate(rest_.substr(6)) >= kLowSurrogate;
    if (is_pair) return Copy(12);
    Replace(rest_.substr(0, 6), kReplacement);
  }

  // The surrogate whose escape, \uD800 to \uDFFF, begins the text; otherwise
  // 0.
  static uint32_t Surrogate(std::string_view text) {
    uint32_t unit = 0;
    const bool is_escape = text.size() >= 6 && absl::StartsWith(text, "\\u") &&
                           absl::ascii_isxdigit(text[2]) &&
                           absl::SimpleHexAtoi(text.substr(2, 4), &unit);
    return is_escape && unit >= 0xD800 && unit <= 0xDFFF ? unit : 0;
  }

  static constexpr uint32_t kLowSurrogate = 0xDC00;
  static constexpr std::string_view kReplacement = "\xef\xbf\xbd";

  std::string_view rest_;
  std::string result_;
};

constexpr std::string_view kAnArray = "an array, [...]";
constexpr std::string_view kAnObject = "an object, {...}";
constexpr std::string_view kAText = "a text in quotation marks";
constexpr double kAnyNumber = -std::numeric_limits<double>::infinity();

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text,
                               const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(text.size(), " bytes of JSON; at most ", limits.max_bytes,
                     " are allowed"));
  }
  absl::StatusOr<json> document = Build(text, limits);
  if (document.ok() || limits.dialect == JsonDialect::kStrict) return document;
  return Build(StrictJson(text), limits);
}

std::string StrictJson(std::string_view text) { return Rewriter(text).Run(); }

std::string DumpJson(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string DumpJson(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false,
                    nlohmann::ordered_json::error_handler_t::replace);
}

std::string DescribeJson(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (!value.is_string()) return DumpJson(value);
  return Quoted(value.get_ref<const std::string&>());
}

std::optional<int64_t> JsonInteger(const json& value) {
  constexpr auto kMax =
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMax) {
    return std::nullopt;
  }
  return value.get<int64_t>();
}

void JsonProblems::Add(std::string problem) {
  ++count_;
  if (lines_.size() < kShownProblems) lines_.push_back(std::move(problem));
}

absl::Status JsonProblems::ToStatus(std::string_view what) const {
  if (empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, " has ", count_,
      count_ == 1 ? " problem: " : " problems: ", absl::StrJoin(lines_, "; "),
      count_ > static_cast<int64_t>(lines_.size()) ? "; ..." : ""));
}

JsonReader::JsonReader(const json& value, std::string path,
                       JsonProblems& problems)
    : path_(std::move(path)), problems_(problems) {
  if (value.is_object()) {
    object_ = &value;
  } else {
    Wrong(path_.empty() ? "the text" : path_, value, kAnObject);
  }
}

JsonReader::JsonReader(const json* object, std::string path,
                       JsonProblems& problems)
    : object_(object), path_(std::move(path)), problems_(problems) {}

JsonReader JsonReader::Child(std::string_view key) {
  const json* value = Need(key, kAnObject);
  if (value != nullptr && !value->is_object()) {
    Wrong(PathOf(key), *value, kAnObject);
    value = nullptr;
  }
  return JsonReader(value, PathOf(key), problems_);
}

std::string JsonReader::PathOf(std::string_view key) const {
  return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
}

bool JsonReader::Has(std::string_view key) const {
  return object_ != nullptr && object_->contains(std::string(key));
}

const json* JsonReader::Find(std::string_view key) {
  asked_.push_back(key);
  if (object_ == nullptr) return nullptr;
  const auto found = object_->find(std::string(key));
  return found == object_->end() ? nullptr : &*found;
}

const json* JsonReader::Need(std::string_view key, std::string_view allowed) {
  const json* value = Find(key);
  if (value == nullptr && object_ != nullptr) {
    problems_.Add(absl::StrCat(PathOf(key), " is missing; give ", allowed));
  }
  return value;
}

void JsonReader::Wrong(const std::string& path, const json& value,
                       std::string_view allowed) {
  problems_.Add(
      absl::StrCat(path, " is ", DescribeJson(value), "; use ", allowed));
}

bool JsonReader::ReadInteger(const json& value, const std::string& path,
                             int64_t low, int64_t high, int64_t& result) {
  const std::optional<int64_t> number = JsonInteger(value);
  if (!number.has_value() || *number < low || *number > high) {
    Wrong(path, value, absl::StrCat("a whole number from ", low, " to ", high));
    return false;
  }
  result = *number;
  return true;
}

bool JsonReader::ReadNumber(const json& value, const std::string& path,
                            double low, double& result) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!std::isfinite(number) || number < low) {
    Wrong(path, value,
          low == kAnyNumber ? "a number"
                            : absl::StrCat("a number, at least ", low));
    return false;
  }
  result = number;
  return true;
}

int64_t JsonReader::Integer(std::string_view key, int64_t low, int64_t high) {
  int64_t result = low;
  if (const json* value = Need(key, "a whole number")) {
    ReadInteger(*value, PathOf(key), low, high, result);
  }
  return result;
}

std::vector<int64_t> JsonReader::Integers(std::string_view key, int64_t low,
                                          int64_t high) {
  std::vector<int64_t> result;
  const json& array = Array(key);
  for (size_t i = 0; i < array.size(); ++i) {
    const std::string path = absl::StrCat(PathOf(key), "[", i, "]");
    if (!ReadInteger(array[i], path, low, high, result.emplace_back())) {
      return {};
    }
  }
  return result;
}

double JsonReader::Number(std::string_view key) {
  double result = 0;
  if (const json* value = Need(key, "a number")) {
    ReadNumber(*value, PathOf(key), kAnyNumber, result);
  }
  return result;
}

std::vector<double> JsonReader::Numbers(std::string_view key) {
  std::vector<double> result;
  const json& array = Array(key);
  for (size_t i = 0; i < array.size(); ++i) {
    const std::string path = absl::StrCat(PathOf(key), "[", i, "]");
    if (!ReadNumber(array[i], path, kAnyNumber, result.emplace_back())) {
      return {};
    }
  }
  return result;
}

bool JsonReader::Boolean(std::string_view key) {
  constexpr std::string_view kAllowed = "true or false";
  const json* value = Need(key, kAllowed);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  Wrong(PathOf(key), *value, kAllowed);
  return false;
}

std::string JsonReader::Text(std::string_view key) {
  const json* value = Need(key, kAText);
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  Wrong(PathOf(key), *value, kAText);
  return "";
}

const json& JsonReader::Array(std::string_view key) {
  static const json* const kEmpty = new json(json::array());
  const json* value = Need(key, kAnArray);
  if (value == nullptr) return *kEmpty;
  if (value->is_array()) return *value;
  Wrong(PathOf(key), *value, kAnArray);
  return *kEmpty;
}

const json& JsonReader::Object(std::string_view key) {
  static const json* const kEmpty = new json(json::object());
  const json* value = Need(key, kAnObject);
  if (value == nullptr) return *kEmpty;
  if (value->is_object()) return *value;
  Wrong(PathOf(key), *value, kAnObject);
  return *kEmpty;
}

int64_t JsonReader::IntegerOr(std::string_view key, int64_t fallback,
                              int64_t low, int64_t high) {
  int64_t result = fallback;
  if (const json* value = Find(key)) {
    ReadInteger(*value, PathOf(key), low, high, result);
  }
  return result;
}

double JsonReader::NumberOr(std::string_view key, double fallback, double low) {
  double result = fallback;
  if (const json* value = Find(key)) {
    ReadNumber(*value, PathOf(key), low, result);
  }
  return result;
}

std::string JsonReader::TextOr(std::string_view key, std::string fallback) {
  if (Has(key)) return Text(key);
  asked_.push_back(key);
  return fallback;
}

const json* JsonReader::FindArray(std::string_view key) {
  const json* value = Find(key);
  if (value == nullptr || value->is_array()) return value;
  Wrong(PathOf(key), *value, kAnArray);
  return nullptr;
}

const json* JsonReader::FindObject(std::string_view key) {
  const json* value = Find(key);
  if (value == nullptr || value->is_object()) return value;
  Wrong(PathOf(key), *value, kAnObject);
  return nullptr;
}

void JsonReader::Refuse(std::string_view key, std::string_view why) {
  problems_.Add(absl::StrCat(PathOf(key), ": ", why));
}

void JsonReader::RefuseOtherKeys() {
  if (object_ == nullptr) return;
  for (const auto& [key, value] : object_->items()) {
    if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
    const std::string shown = absl::CHexEscape(key.substr(0, kShownKeyBytes));
    problems_.Add(absl::StrCat(PathOf(shown),
                               " is an unknown key; the keys are ",
                               absl::StrJoin(asked_, ", ")));
  }
}

}  // namespace tessera
