// Units: what a rank starts at once, an action or a pair that runs together.
#ifndef TESSERA_PIPELINE_PASSES_UNITS_H_
#define TESSERA_PIPELINE_PASSES_UNITS_H_

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The units of a rank's list, in order; they point into `schedule`.
// InvalidArgument, with rank and position, where a list's last action runs
// together with one after it, or three actions run together.
absl::StatusOr<std::vector<std::span<const Action>>> UnitsOf(
    const Schedule& schedule, size_t rank);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PASSES_UNITS_H_
