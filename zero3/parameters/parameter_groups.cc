#include "zero3/parameters/parameter_groups.h"

#include <fnmatch.h>

#include <cmath>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/btree_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

bool Matches(const ParameterGroup& group, const std::string& name) {
  return fnmatch(group.pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

absl::Status Refuse(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(text), " ", why,
                   "; give PATTERN:lr=FACTOR,decay=NUMBER, such as "
                   "*norm*:decay=0"));
}

absl::StatusOr<ParameterGroup> ParseGroup(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == 0 || colon == text.npos) {
    return Refuse(text, "is not a pattern and its settings");
  }
  ParameterGroup group = {.pattern = std::string(text.substr(0, colon))};
  bool has_rate = false;
  for (const std::string_view setting :
       absl::StrSplit(text.substr(colon + 1), ',')) {
    const std::pair<std::string_view, std::string_view> parts =
        absl::StrSplit(setting, absl::MaxSplits('=', 1));
    double value = 0;
    if (!absl::SimpleAtod(parts.second, &value) || !std::isfinite(value) ||
        value < 0) {
      return Refuse(setting, "has no number of at least 0");
    }
    if (parts.first == "lr" && !has_rate) {
      group.rates.learning_rate = value;
      has_rate = true;
    } else if (parts.first == "decay" && !group.rates.weight_decay) {
      group.rates.weight_decay = value;
    } else {
      return Refuse(setting, "is not one lr and one decay");
    }
  }
  return group;
}

// The names with layer numbers as *, each once.
std::string PatternsOf(std::span<const std::string> names) {
  absl::btree_set<std::string> patterns;
  for (const std::string& name : names) {
    std::vector<std::string> parts = absl::StrSplit(name, '.');
    for (std::string& part : parts) {
      if (absl::c_all_of(part, absl::ascii_isdigit)) part.assign(1, '*');
    }
    patterns.insert(absl::StrJoin(parts, "."));
  }
  return absl::StrJoin(patterns, ", ");
}

}  // namespace

absl::StatusOr<std::vector<ParameterGroup>> ParseParameterGroups(
    std::string_view text) {
  std::vector<ParameterGroup> groups;
  if (text.empty()) return groups;
  for (const std::string_view part : absl::StrSplit(text, ';')) {
    TESSERA_ASSIGN_OR_RETURN(groups.emplace_back(), ParseGroup(part));
  }
  return groups;
}

ParameterRates RatesOf(std::span<const ParameterGroup> groups,
                       std::string_view name) {
  const auto found = absl::c_find_if(groups, [&](const ParameterGroup& group) {
    return Matches(group, std::string(name));
  });
  return found == groups.end() ? ParameterRates() : found->rates;
}

absl::Status CheckPatternsMatch(std::span<const ParameterGroup> groups,
                                std::span<const std::string> names) {
  for (const ParameterGroup& group : groups) {
    if (absl::c_any_of(names, [&](const std::string& name) {
          return Matches(group, name);
        })) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern ", Quoted(group.pattern),
                     " matches no parameter; there are ", PatternsOf(names)));
  }
  return absl::OkStatus();
}

}  // namespace tessera::zero3
