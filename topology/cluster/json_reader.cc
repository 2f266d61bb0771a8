#include "topology/cluster/json_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::topology {
namespace {

using nlohmann::json;

constexpr size_t kShownProblems = 20;
constexpr size_t kShownLength = 40;

}  // namespace

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
    return;
  }
  problems_.Add(absl::StrCat(path_.empty() ? "the text" : path_, " is ",
                             Shown(value), "; use an object, {...}"));
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

void JsonReader::Wrong(std::string_view key, const json& value,
                       std::string_view allowed) {
  problems_.Add(
      absl::StrCat(PathOf(key), " is ", Shown(value), "; use ", allowed));
}

int64_t JsonReader::Integer(std::string_view key, int64_t fallback, int64_t low,
                            int64_t high) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  // Above 2^63-1 a number is unsigned, and no limit here reaches that far.
  const bool fits =
      value->is_number_unsigned()
          ? value->get<uint64_t>() <=
                static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
          : value->is_number_integer();
  if (fits) {
    const int64_t number = value->get<int64_t>();
    if (number >= low && number <= high) return number;
  }
  Wrong(key, *value, absl::StrCat("a whole number from ", low, " to ", high));
  return fallback;
}

double JsonReader::Number(std::string_view key, double fallback) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (std::isfinite(number) && number >= 0) return number;
  }
  Wrong(key, *value, "a number, at least 0");
  return fallback;
}

std::string JsonReader::Text(std::string_view key, std::string fallback) {
  const json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  Wrong(key, *value, "a text in quotation marks");
  return fallback;
}

const json* JsonReader::Array(std::string_view key) {
  const json* value = Find(key);
  if (value == nullptr || value->is_array()) return value;
  Wrong(key, *value, "an array, [...]");
  return nullptr;
}

const json* JsonReader::Object(std::string_view key) {
  const json* value = Find(key);
  if (value == nullptr || value->is_object()) return value;
  Wrong(key, *value, "an object, {...}");
  return nullptr;
}

void JsonReader::RefuseOtherKeys() {
  if (object_ == nullptr) return;
  for (const auto& [key, value] : object_->items()) {
    if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
    problems_.Add(absl::StrCat(PathOf(key.substr(0, kShownLength)),
                               " is an unknown key; the keys are ",
                               absl::StrJoin(asked_, ", ")));
  }
}

std::string JsonReader::Shown(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  // The text may end within a UTF-8 sequence after the cut: replace, not throw.
  if (!value.is_string()) return value.dump();
  const std::string& text = value.get_ref<const std::string&>();
  const json cut = text.substr(0, kShownLength);
  return absl::StrCat(cut.dump(-1, ' ', true, json::error_handler_t::replace),
                      text.size() > kShownLength ? "..." : "");
}

}  // namespace tessera::topology
