// What to change where a rule of the report is broken: flags with values, of
// these settings.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_REPORT_CHANGES_H_
#define TESSERA_TOOLS_TRAIN_REPORT_REPORT_CHANGES_H_

#include <cstdint>
#include <string>

#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// Sentences with flags, such as "--zero=1, which sends weights once a step".
std::string ChangeForCommunication(const Settings& settings,
                                   const RunPrediction& prediction);
std::string ChangeForMemory(const Settings& settings,
                            const RunPrediction& prediction);
std::string ChangeForPipeline(const Settings& settings,
                              const RunPrediction& prediction);
std::string ChangeForTensor(const Settings& settings,
                            const RunPrediction& prediction);
std::string ChangeForStraggler(int64_t rank);
std::string ChangeForOverlap(const Settings& settings);
std::string ChangeForOffload(const Settings& settings);

// The axis along which a rank sends most, by prediction.
TrafficAxis BusiestAxis(const RunPrediction& prediction);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_REPORT_CHANGES_H_
