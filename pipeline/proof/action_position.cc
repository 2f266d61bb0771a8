#include "pipeline/proof/action_position.h"

#include "absl/strings/str_cat.h"

namespace tessera::pipeline {

absl::StatusOr<std::vector<std::span<const Action>>> UnitsOf(
    const Schedule& schedule, size_t rank) {
  const std::span<const Action> actions = schedule.ranks[rank];
  std::vector<std::span<const Action>> units;
  for (size_t start = 0; start < actions.size();) {
    const size_t size = actions[start].with_next ? 2 : 1;
    if (start + size > actions.size() || actions[start + size - 1].with_next) {
      return absl::InvalidArgumentError(absl::StrCat(
          Describe(schedule,
                   {static_cast<int32_t>(rank), static_cast<int32_t>(start)}),
          start + size > actions.size()
              ? " runs together with the action after it, but is the last"
              : " runs together with two others; one is allowed"));
    }
    units.push_back(actions.subspan(start, size));
    start += size;
  }
  return units;
}

}  // namespace tessera::pipeline
