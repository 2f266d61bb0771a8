#include "tools/comm_bench/arguments.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera::tools {
namespace {

constexpr std::array<std::pair<char, std::string_view>, 8> kShort = {{
    {'b', "min_bytes"},
    {'e', "max_bytes"},
    {'f', "factor"},
    {'n', "iterations"},
    {'w', "warmup"},
    {'d', "dtype"},
    {'o', "reduction"},
    {'c', "check"},
}};

// The long name of "-b...", or nothing.
std::string_view LongName(std::string_view argument) {
  if (argument.size() < 2 || argument[0] != '-') return "";
  for (const auto& [letter, name] : kShort) {
    if (argument[1] == letter) return name;
  }
  return "";
}

}  // namespace

std::vector<std::string> LongArguments(
    const std::vector<std::string>& arguments) {
  std::vector<std::string> result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view name = LongName(arguments[i]);
    if (name.empty()) {
      result.push_back(arguments[i]);
      continue;
    }
    std::string_view value = std::string_view(arguments[i]).substr(2);
    absl::ConsumePrefix(&value, "=");
    if (arguments[i].size() > 2) {
      result.push_back(absl::StrCat("--", name, "=", value));
    } else if (i + 1 < arguments.size()) {
      result.push_back(absl::StrCat("--", name, "=", arguments[++i]));
    } else {
      result.push_back(absl::StrCat("--", name));
    }
  }
  return result;
}

}  // namespace tessera::tools
