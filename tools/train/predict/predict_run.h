// PredictRun: what a run needs and does, before it runs: memory of each rank by
// purpose, bytes along each axis, the bubble, and whether it fits into this
// machine.
//
//   TESSERA_ASSIGN_OR_RETURN(const RunPrediction prediction,
//                            PredictRun(settings, model));
//   if (!prediction.fits()) prediction.advice.front().flag;
//
// Memory is counted by the rules that the runtime follows (README.md), and
// tests hold it against the runtime's own accounting.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RUN_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RUN_H_

#include "absl/status/statusor.h"
#include "tools/model_files/model_config.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// With advice where it does not fit. InvalidArgument as CheckSettings, and
// where the model does not fit the mesh.
absl::StatusOr<RunPrediction> PredictRun(const Settings& settings,
                                         const model_files::ModelConfig& model,
                                         const PredictOptions& options = {});

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_PREDICT_RUN_H_
