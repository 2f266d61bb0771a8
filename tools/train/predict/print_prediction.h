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

// Prints the mesh, the memory of each rank by purpose (with more than 16 ranks,
// only of the first of each pipeline rank), the bytes along each axis of the
// rank that sends most, the bubble, and whether the run fits, with advice if it
// does not. On GPUs and emulated devices the memory columns of the device come
// before those of the host, each with its limit.
void PrintPredictionText(const RunPrediction& prediction, std::ostream& out);

// Returns a JSON object that ends with a line feed. Bytes and operations are
// numbers. Keys:
//
//   mesh, world_size, schedule, stages, micro_batches, parameters, bubble,
//   flops placement    when weights are gathered and gradients are reduced
//   ranks        each with coordinates, stages, memory and traffic; weights
//                are the statistics of the sizes of its weights
//   memory       needed, available, limit: of the host
//                fits: on the host and the device
//                device: null if the processor computes; otherwise needed,
//                ranks, available, limit and fits of the GPU with most ranks;
//                available and fits are null if its memory is unknown
//   advice
std::string PredictionAsJson(const RunPrediction& prediction);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_PRINT_PREDICTION_H_
