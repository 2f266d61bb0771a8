// Checks settings, as far as that is possible without the model, the data and
// other ranks.
//
//   TESSERA_RETURN_IF_ERROR(CheckSettings(settings));
//   // --batch=10: must be a multiple of 8 (dp 2 x --micro_batch=4), such as
//   // --batch=8
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_CHECK_SETTINGS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_CHECK_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "tools/train/settings/settings.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {

// True if --schedule names a file: it ends in .csv or contains a slash.
bool IsScheduleFile(std::string_view schedule);

// Returns the first of ParallelConfig's problems, as CheckSettings does. With
// `world_size`, the mesh must have as many ranks.
absl::Status CheckParallel(const topology::ParallelConfig& parallel,
                           std::optional<int64_t> world_size = std::nullopt);

// Returns InvalidArgument for the first invalid value, in one line:
// "--flag=value: what is allowed, such as ...".
absl::Status CheckSettings(const Settings& settings);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_CHECK_SETTINGS_H_
