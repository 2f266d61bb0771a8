// FitMemoryLimit: the lowest rung of the memory ladder
// (settings/memory_ladder.h) with which a run is predicted to stay within
// --memory_limit.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_MEMORY_STRATEGY_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_MEMORY_STRATEGY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/model_files/model_config.h"
#include "tools/train/settings/memory_ladder.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// "memory: strategy aggressive: --recompute=full --zero=3 (predicted 231.0MiB
// of --memory_limit=300MiB; 412.0MiB as given)"
std::string DescribeChoice(const MemoryRung& choice);

// `settings` are checked and have a memory limit. `scratch` is a directory for
// files. InvalidArgument, in one line, where even extreme does not fit: names
// the largest layer, what is needed and the least limit that is enough.
absl::StatusOr<MemoryRung> FitMemoryLimit(const Settings& settings,
                                          const model_files::ModelConfig& model,
                                          const std::string& scratch,
                                          PredictNeed predict);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_MEMORY_STRATEGY_H_
