// RunOptionsFrom: what the ranks of a run are to do, from its settings.
//
//   TESSERA_ASSIGN_OR_RETURN(ModelConfig model, ModelOf(settings, vocabulary));
//   TESSERA_ASSIGN_OR_RETURN(RunOptions options,
//                            RunOptionsFrom(settings, model));
//   options.state.optimizer_tier = tier;   // As --offload says.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_FROM_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_FROM_H_

#include "absl/status/statusor.h"
#include "tools/model_files/model_config.h"
#include "tools/train/loop/run_options.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Without tiers, which belong to the process, and without the model's checks.
// Refuses what CheckSettings refuses.
absl::StatusOr<RunOptions> RunOptionsFrom(
    const Settings& settings, const model_files::ModelConfig& model);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_FROM_H_
