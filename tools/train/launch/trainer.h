// MakeTrainer: a rank's work in a training run, for whoever starts ranks.
//
//   if (IsRankProcess(argc, argv)) {
//     return RankProcessMain(argc, argv, MakeTrainer);
//   }
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_TRAINER_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_TRAINER_H_

#include "absl/status/statusor.h"
#include "tools/train/launch/rank_program.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Opens the data and the model, for all ranks of this process. Each rank's
// program is RunWorker, with rank 0's table where the user sees it, unless the
// settings are quiet; it returns FormatRunResult. Refuses what
// OpenTrainingData and ModelOf refuse.
absl::StatusOr<RankProgram> MakeTrainer(const Settings& settings);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_TRAINER_H_
