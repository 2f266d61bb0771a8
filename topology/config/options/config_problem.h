// ConfigProblem: one thing that is wrong with a configuration, and its cure.
//
//   for (const ConfigProblem& problem : config.Problems()) {
//     if (problem.replacement) form.Suggest(problem.field,
//     *problem.replacement);
//   }
#ifndef TESSERA_TOPOLOGY_CONFIG_OPTIONS_CONFIG_PROBLEM_H_
#define TESSERA_TOPOLOGY_CONFIG_OPTIONS_CONFIG_PROBLEM_H_

#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace tessera::topology {

struct ConfigProblem {
  // The field as it is called in JSON, or "world_size".
  std::string field;
  // What it is: "3".
  std::string given;
  // What it may be: "at least 4 (pp * chunks), so that no stage is empty".
  std::string allowed;
  // What to do: "set layers to 4 or more".
  std::string fix;
  // A value for the field, as text, with which no problem of this field is
  // left as long as the others stay. Nothing where no value would do.
  std::optional<std::string> replacement;

  // "layers is 3; allowed: at least 4; fix: set layers to 4 or more".
  std::string ToString() const;
};

// OK where there are none, else InvalidArgument: "N problems with `what`:" and
// one numbered line for each.
absl::Status ProblemsToStatus(std::span<const ConfigProblem> problems,
                              std::string_view what);

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_CONFIG_OPTIONS_CONFIG_PROBLEM_H_
