#include "topology/cluster/json_check.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tessera::topology {
namespace {

using nlohmann::json;

// Follows the parser without keeping values. A handler that returns false ends
// the parse.
class Checker : public nlohmann::json_sax<json> {
 public:
  explicit Checker(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }

  bool start_object(std::size_t) override { return Open(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    problem_ = absl::StrCat("an object has the key \"", name.substr(0, 40),
                            "\" twice; give it once");
    return false;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    error_position_ = position;
    problem_ = "is no JSON";
    return false;
  }

  const std::string& problem() const { return problem_; }
  size_t error_position() const { return error_position_; }

 private:
  bool Open() {
    keys_.emplace_back();
    if (static_cast<int>(keys_.size()) <= max_depth_) return true;
    problem_ = absl::StrCat("is nested more than ", max_depth_, " deep");
    return false;
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }

  const int max_depth_;
  std::vector<absl::flat_hash_set<std::string>> keys_;
  std::string problem_;
  size_t error_position_ = 0;
};

// "line 3, column 7" of the byte that ends `position` bytes.
std::string LineAndColumn(std::string_view text, size_t position) {
  const std::string_view before =
      text.substr(0, std::min(position, text.size()));
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n');
  const size_t column = line_start == std::string_view::npos
                            ? before.size()
                            : before.size() - line_start - 1;
  return absl::StrCat("line ", lines + 1, ", column ",
                      std::max<size_t>(column, 1));
}

}  // namespace

absl::Status CheckJsonText(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the text has ", text.size(),
                                                   " bytes; use at most ",
                                                   limits.max_bytes));
  }
  Checker checker(limits.max_depth);
  if (json::sax_parse(text, &checker)) return absl::OkStatus();
  std::string place;
  if (checker.error_position() > 0) {
    place = absl::StrCat(" at ", LineAndColumn(text, checker.error_position()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the text: ", checker.problem(), place));
}

}  // namespace tessera::topology
