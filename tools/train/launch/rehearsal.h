// MeasureProcess: the memory of a rank's process that PredictRank does not
// count: program, threads, libraries, groups. The text is not included.
//
//   TESSERA_ASSIGN_OR_RETURN(MachineRoom room, ReadMachineRoom());
//   TESSERA_ASSIGN_OR_RETURN(room.process,
//                            MeasureProcess(settings, model, program));
//
// It is measured, since most of a program is loaded when it is first used: at
// most 8 processes like those of the run train the smallest preset for a few
// steps on a line of text; the result is their resident memory minus its
// prediction, plus the memory of products of the run's sizes
// (product_memory.h). Takes less than a second.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_REHEARSAL_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_REHEARSAL_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/model_files/model_config.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Bytes for a rank of this engine with this tokenizer. `program` as in
// AttemptOptions. Errors are those of the training. Call it on the main thread.
absl::StatusOr<int64_t> MeasureProcess(const Settings& settings,
                                       const model_files::ModelConfig& model,
                                       const std::string& program);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_REHEARSAL_H_
