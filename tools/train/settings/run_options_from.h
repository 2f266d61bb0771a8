// Makes the model and the ranks' options from the settings.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const model_files::ModelConfig model,
//       ModelOf(settings, data.tokenizer->vocabulary_size()));
//   TESSERA_ASSIGN_OR_RETURN(RunOptions options,
//                            RunOptionsFrom(settings, model));
//   options.state.optimizer_tier = tier;  // with --offload=optimizer
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_FROM_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_FROM_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/model_files/model_config.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Returns the model that --model selects: a preset (model_files/presets.h), or
// the config.json of a directory (a name with a slash is
// always a directory).
//
// A preset gets at least `vocabulary` tokens, rounded up to a multiple of 8,
// and at least --length positions. A directory's model is used unchanged.
//
// Requires that `settings` have passed CheckSettings. InvalidArgument, with the
// flag, if a directory's model has too few tokens or positions, the model does
// not exist, it has fewer layers than the pipeline has stages, or its heads are
// not divisible among the tensor ranks.
absl::StatusOr<model_files::ModelConfig> ModelOf(const Settings& settings,
                                                 int64_t vocabulary);

// Returns the options of every rank, without tiers, which belong to the
// process. Does not check the model. With --order=auto the axes have the
// default order; predict/choose_order.h selects another one. Returns the errors
// of CheckSettings.
absl::StatusOr<RunOptions> RunOptionsFrom(
    const Settings& settings, const model_files::ModelConfig& model);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_RUN_OPTIONS_FROM_H_
