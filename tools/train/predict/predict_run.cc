#include "tools/train/predict/predict_run.h"

#include "base/status_macros.h"
#include "tools/train/predict/memory_advice.h"

namespace tessera::train {

absl::StatusOr<RunPrediction> PredictRun(const Settings& settings,
                                         const model_files::ModelConfig& model,
                                         const PredictOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(RunPrediction prediction,
                           MakePrediction(settings, model, options));
  if (!prediction.fits()) {
    prediction.advice =
        AdviceFor(settings, model, prediction, options.first_advice_only);
  }
  return prediction;
}

}  // namespace tessera::train
