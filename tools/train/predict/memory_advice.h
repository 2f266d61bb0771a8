// AdviceFor: which flags to change so that a run needs less memory.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_MEMORY_ADVICE_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_MEMORY_ADVICE_H_

#include <vector>

#include "tools/model_files/model_config.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Each change is tried by itself, those that leave most first; where none of
// them fits, one after the other, together with all before it, as long as it
// helps. Empty: nothing helps. `prediction` is of these settings. With
// `first_only` the list may end after its first element, which takes half of
// the time.
std::vector<MemoryAdvice> AdviceFor(const Settings& settings,
                                    const model_files::ModelConfig& model,
                                    const RunPrediction& prediction,
                                    bool first_only = false);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_MEMORY_ADVICE_H_
