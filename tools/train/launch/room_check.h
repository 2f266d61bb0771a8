// CheckRoom: rejects a run that does not fit into this machine's memory before
// it starts.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunPrediction prediction,
//                            PredictRun(settings, model));
//   TESSERA_RETURN_IF_ERROR(CheckRoom(settings, prediction, std::cerr));
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_ROOM_CHECK_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_ROOM_CHECK_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// InvalidArgument, in one line, with the bytes needed, the bytes available and
// their source, the first advice, and --force. With settings.force it writes
// the same line to `err` as a warning and returns OK.
absl::Status CheckRoom(const Settings& settings,
                       const RunPrediction& prediction, std::ostream& err);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_ROOM_CHECK_H_
