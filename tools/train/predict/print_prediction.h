// PrintPrediction: a RunPrediction for people and for programs.
//
//   PrintPredictionText(prediction, std::cout);
//   std::string json = PredictionAsJson(prediction);
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_PRINT_PREDICTION_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_PRINT_PREDICTION_H_

#include <ostream>
#include <string>

#include "tools/train/predict/run_prediction.h"

namespace tessera::train {

// Mesh, memory of each rank (of more than 16 the first of each pipeline rank)
// by purpose, bytes along each axis of the rank with most, the bubble, and
// whether it fits, or what to change.
void PrintPredictionText(const RunPrediction& prediction, std::ostream& out);

// An object with the keys mesh, world_size, schedule, placement (when weights
// are gathered and gradients reduced), stages, micro_batches, parameters, ranks
// (each with coordinates, stages, memory and traffic), bubble, flops, memory
// (needed, available, limit, fits) and advice; bytes and operations are
// numbers. Ends with a line feed.
std::string PredictionAsJson(const RunPrediction& prediction);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_PRINT_PREDICTION_H_
