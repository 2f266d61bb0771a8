// Prints a RunPrediction as text and as JSON.
//
//   PrintPredictionText(prediction, std::cout);
//   std::string json = PredictionAsJson(prediction);
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_PRINT_PREDICTION_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_PRINT_PREDICTION_H_

#include <ostream>
#include <string>

#include "tools/train/predict/run_prediction.h"

namespace tessera::train {

// The mesh, the memory of each rank by purpose (with more than 16 ranks, of the
// first of each pipeline rank), the bytes along each axis of the rank that
// sends most, the bubble, and whether the run fits, or what to change. On GPUs
// and emulated devices the columns of memory are those of the device, then of
// the host, and each has its limit.
void PrintPredictionText(const RunPrediction& prediction, std::ostream& out);

// An object with the keys mesh, world_size, schedule, placement (when weights
// are gathered and gradients reduced), stages, micro_batches, parameters, ranks
// (each with coordinates, stages, memory and traffic), bubble, flops, memory
// (needed, available and limit of the host; fits, on the host and the device;
// device: null if the processor computes, or needed, ranks, available, limit
// and fits of the GPU with most ranks, where available and fits are null if it
// is unknown) and advice; bytes and operations are numbers. Ends with a line
// feed.
std::string PredictionAsJson(const RunPrediction& prediction);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_PRINT_PREDICTION_H_
