// MeasureProcess: what a process of a rank has beside what PredictRank counts
// and the text: the program, threads, what libraries and groups keep.
//
//   TESSERA_ASSIGN_OR_RETURN(MachineRoom room, ReadMachineRoom());
//   TESSERA_ASSIGN_OR_RETURN(room.process,
//                            MeasureProcess(settings, model, program));
//
// It is measured, since most of a program comes into memory when it is first
// used: processes such as the run has, at most 8, train the smallest preset for
// a few steps on a line of text, and what is predicted of that is taken off;
// then come products of the run's own sizes (product_memory.h). That takes less
// than a second.
#ifndef TESSERA_TOOLS_TRAIN_JOB_REHEARSAL_H_
#define TESSERA_TOOLS_TRAIN_JOB_REHEARSAL_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/model_files/model_config/model_config.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Bytes, for ranks of this engine, with this tokenizer. `program` as in
// AttemptOptions. Errors are those of the training. On the main thread.
absl::StatusOr<int64_t> MeasureProcess(const Settings& settings,
                                       const model_files::ModelConfig& model,
                                       const std::string& program);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_JOB_REHEARSAL_H_
