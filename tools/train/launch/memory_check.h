// Checks before a run starts whether it fits into memory, and reduces its
// memory to stay within --memory_limit.
//
//   TESSERA_ASSIGN_OR_RETURN(MachineRoom room, ReadMachineRoom());
//   TESSERA_ASSIGN_OR_RETURN(room.process,
//                            MeasureProcess(settings, model, program));
//   TESSERA_ASSIGN_OR_RETURN(const RunPrediction prediction,
//                            PredictRun(settings, model, {.room = room}));
//   TESSERA_RETURN_IF_ERROR(CheckRoom(settings, prediction, std::cerr));
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_MEMORY_CHECK_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_MEMORY_CHECK_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/model_files/model_config.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/memory_ladder.h"
#include "tools/train/settings/run_options.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Measures the working memory of a run's matrix products: OpenBLAS's packing
// buffers, panels of bf16 products, tiles of attention. It cannot be computed,
// because kernels and block sizes depend on the processor, and some kernels do
// not pack small matrices. Runs products of the run's sizes, with one side
// shortened at a time. Returns the resident bytes of a rank of `run` in excess
// of a rank of `small`, with `threads` threads per product. Sets the number of
// threads of this process. InvalidArgument if the model cannot be split over
// the mesh.
absl::StatusOr<int64_t> MeasureProducts(const RunOptions& small,
                                        const RunOptions& run, int threads);

// Measures the bytes of a rank's process that PredictRank does not count:
// program, threads, libraries and groups, but not the training text. Most of a
// program is loaded at its first use, so at most 8 processes with this engine
// and tokenizer train the smallest preset for a few steps on one line of text.
// Returns their resident memory minus its prediction, plus MeasureProducts.
// Takes less than a second. `program` is as in AttemptOptions. Returns errors
// of the training. Call it on the main thread.
absl::StatusOr<int64_t> MeasureProcess(const Settings& settings,
                                       const model_files::ModelConfig& model,
                                       const std::string& program);

// Returns the lowest rung of the memory ladder (settings/memory_ladder.h) that
// is predicted to stay within --memory_limit. `settings` have been checked and
// have a memory limit. `scratch` is a directory for files. InvalidArgument if
// even the highest rung does not fit: one line with the largest layer, the
// bytes needed and the smallest sufficient limit.
absl::StatusOr<MemoryRung> FitMemoryLimit(const Settings& settings,
                                          const model_files::ModelConfig& model,
                                          const std::string& scratch,
                                          PredictNeed predict);

// Describes a rung in one line, such as
// "memory: strategy aggressive: --recompute=full --zero=3 (predicted 231.0MiB
// of --memory_limit=300MiB; 412.0MiB as given)".
std::string DescribeChoice(const MemoryRung& choice);

// Returns InvalidArgument if the run does not fit into this machine, its GPUs
// or --device_budget: one line with the bytes needed, the bytes available
// and their limit, the flags that help, and --force. With settings.force,
// writes that line to `err` as a warning and returns OK.
absl::Status CheckRoom(const Settings& settings,
                       const RunPrediction& prediction, std::ostream& err);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_MEMORY_CHECK_H_
