// ParameterGroup: parameters with their own learning rate and weight decay.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const std::vector<ParameterGroup> groups,
//       ParseParameterGroups("*norm*:decay=0;embed*:lr=0.1,decay=0"));
//   TESSERA_RETURN_IF_ERROR(CheckPatternsMatch(groups, names));
//   RatesOf(groups, "embedding.weight").learning_rate;   // 0.1
#ifndef TESSERA_ZERO3_PARAMETERS_PARAMETER_GROUPS_H_
#define TESSERA_ZERO3_PARAMETERS_PARAMETER_GROUPS_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::zero3 {

// How a parameter differs from the optimizer's options.
struct ParameterRates {
  double learning_rate = 1;  // The factor of the learning rate.
  // Replaces the weight decay, and applies to vectors too. Unset: the
  // optimizer's.
  std::optional<double> weight_decay = {};

  friend bool operator==(const ParameterRates&,
                         const ParameterRates&) = default;
};

struct ParameterGroup {
  // Matches the whole name of a parameter: * stands for any characters, ? for
  // one, [ab] for one of several.
  std::string pattern;
  ParameterRates rates = {};

  friend bool operator==(const ParameterGroup&,
                         const ParameterGroup&) = default;
};

// Parses PATTERN:lr=FACTOR,decay=NUMBER groups separated by semicolons, each
// with one or both settings. Empty text has no groups. InvalidArgument for
// anything else, and for numbers that are negative or not finite.
absl::StatusOr<std::vector<ParameterGroup>> ParseParameterGroups(
    std::string_view text);

// The rates of the first group that matches the name; by default {}.
ParameterRates RatesOf(std::span<const ParameterGroup> groups,
                       std::string_view name);

// InvalidArgument, with the names, if a pattern matches none of them.
absl::Status CheckPatternsMatch(std::span<const ParameterGroup> groups,
                                std::span<const std::string> names);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_PARAMETER_GROUPS_H_
