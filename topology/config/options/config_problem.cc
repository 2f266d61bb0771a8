#include "topology/config/options/config_problem.h"

#include "absl/strings/str_cat.h"

namespace tessera::topology {

std::string ConfigProblem::ToString() const {
  return absl::StrCat(field, " is ", given, "; allowed: ", allowed,
                      "; fix: ", fix);
}

absl::Status ProblemsToStatus(std::span<const ConfigProblem> problems,
                              std::string_view what) {
  if (problems.empty()) return absl::OkStatus();
  std::string message = absl::StrCat(
      problems.size(), problems.size() == 1 ? " problem" : " problems",
      " with ", what, ":");
  int number = 0;
  for (const ConfigProblem& problem : problems) {
    absl::StrAppend(&message, "\n", ++number, ". ", problem.ToString());
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace tessera::topology
