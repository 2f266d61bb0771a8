// Begins runs with models of Hugging Face (--init_from) and writes trained ones
// (--save_hf).
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_HUGGING_FACE_RUN_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_HUGGING_FACE_RUN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/text/tokenizer.h"
#include "tools/train/launch/run_directory.h"
#include "tools/train/settings/settings.h"
#include "tools/train/settings/settings_flags.h"

namespace tessera::train {

// With --init_from, sets --model to its directory and, unless it was given,
// --dtype to the type of its weights. InvalidArgument, with the flag, if the
// directory has no model that a run supports, a tensor is missing, or a given
// --model is another model.
absl::Status FollowInitialModel(const SettingsFlags& flags, Settings& settings);

// InvalidArgument, with the flag, if --save_hf is not a new or empty directory,
// or it cannot be made. Call it before the ranks start.
absl::Status CheckSaveTarget(const Settings& settings);

// Writes the checkpoint of the last step, `last`, into --save_hf; with
// --keep_best also the best one of `directory`. If `last` is empty, the run
// took no step, and the checkpoint is the newest one of `directory`, or that of
// --resume. Copies the tokenizer if its directory has a tokenizer.json or
// tokenizer.model. Returns the directories of the models, none without
// --save_hf. Errors name the command that writes the model from the checkpoint.
absl::StatusOr<std::vector<std::string>> SaveModel(
    const Settings& settings, const text::Tokenizer& tokenizer,
    const RunDirectory& directory, const std::string& last);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_HUGGING_FACE_RUN_H_
