// CheckRoom: refuses a run that does not fit into this machine's memory, before
// anything is started.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunPrediction prediction,
//                            PredictRun(settings, model));
//   TESSERA_RETURN_IF_ERROR(CheckRoom(settings, prediction, std::cerr));
#ifndef TESSERA_TOOLS_TRAIN_JOB_ROOM_CHECK_H_
#define TESSERA_TOOLS_TRAIN_JOB_ROOM_CHECK_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// InvalidArgument, on one line, with the bytes that are needed, those that are
// available and of what, the first advice, and --force. With settings.force
// that is a warning on `err` instead.
absl::Status CheckRoom(const Settings& settings,
                       const RunPrediction& prediction, std::ostream& err);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_JOB_ROOM_CHECK_H_
