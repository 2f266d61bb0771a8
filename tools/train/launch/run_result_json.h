// RunResult as JSON: how rank 0 tells it to the process that the user started,
// and what stays as result.json in the run's directory.
//
//   {"seconds": 41.2, "tokens_per_second": 2970, "first_step": 0,
//    "checkpoint": "/tmp/train-x/checkpoints/step-00000060",
//    "memory_is_shared": false, "steps": [{"step": 0, ...}, ...],
//    "ranks": [{"shares": {...}, "memory": {...}}, ...]}
//
//   TESSERA_ASSIGN_OR_RETURN(RunResult same,
//                            ParseRunResult(FormatRunResult(result)));
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_RUN_RESULT_JSON_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_RUN_RESULT_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/train/loop/run_result.h"

namespace tessera::train {

inline constexpr size_t kMaxRunResultBytes = size_t{1} << 30;

// Exact: numbers that JSON does not have (a loss that is not finite) are null,
// which comes back as not a number.
std::string FormatRunResult(const RunResult& result);

// InvalidArgument, with the place, for all that FormatRunResult does not write.
absl::StatusOr<RunResult> ParseRunResult(std::string_view json);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_RUN_RESULT_JSON_H_
