// ModelOf: the model that --model names, which fits the tokens and the mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       model_files::ModelConfig model,
//       ModelOf(settings, data.tokenizer->vocabulary_size()));
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_FROM_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_FROM_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/model_files/model_config.h"
#include "tools/train/loop/run_options.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// A preset (model_files/model_config/presets.h), or what the config.json of a
// directory says (a path as UserPath takes it; a name with a slash is always
// one).
//
// A preset has at least `vocabulary` tokens, rounded up to a multiple of 8, and
// at least --length positions. A directory's model is as it is: InvalidArgument
// where the tokens or the positions do not fit into it.
//
// InvalidArgument, with the flag, also where there is no such model, it has
// fewer layers than the pipeline has stages, or its heads cannot be shared out
// over the tensor ranks. Expects settings that CheckSettings passes.
absl::StatusOr<model_files::ModelConfig> ModelOf(const Settings& settings,
                                                 int64_t vocabulary);

// RunOptionsFrom: what the ranks of a run are to do, from its settings.
//
//   TESSERA_ASSIGN_OR_RETURN(ModelConfig model, ModelOf(settings, vocabulary));
//   TESSERA_ASSIGN_OR_RETURN(RunOptions options,
//                            RunOptionsFrom(settings, model));
//   options.state.optimizer_tier = tier;   // As --offload says.

// Without tiers, which belong to the process, and without the model's checks.
// Refuses what CheckSettings refuses.
absl::StatusOr<RunOptions> RunOptionsFrom(
    const Settings& settings, const model_files::ModelConfig& model);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_FROM_H_
