// How the state of a model divides over ranks, before anything is allocated.
#include <iomanip>
#include <iostream>
#include <string>

#include "base/status_macros.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/statistics.h"
#include "zero3/state/predict_state.h"

namespace {

using namespace tessera;
using namespace tessera::zero3;

absl::StatusOr<ModelParameters> TwentyFourLayers() {
  ModelParameters::Builder model;
  model.Add(
      {.name = "embedding", .shape = {32000, 2048}, .dtype = DType::kBF16});
  for (int64_t i = 1; i <= 24; ++i) {
    const std::string layer = "layers." + std::to_string(i);
    model.Add({.name = layer + ".attention",
               .shape = {4, 2048, 2048},
               .dtype = DType::kBF16,
               .group = i});
    model.Add({.name = layer + ".mlp",
               .shape = {3, 2048, 5504},
               .dtype = DType::kBF16,
               .group = i});
  }
  return model.Build();
}

absl::Status Run() {
  TESSERA_ASSIGN_OR_RETURN(const ModelParameters model, TwentyFourLayers());
  std::cout << StatisticsOf(model.all()).ToString()
            << "\n\nstage  N    parameters     gradients     optimizer"
            << "          peak\n";
  for (const int stage : {0, 1, 2, 3}) {
    for (const int64_t ranks : {1, 8}) {
      TESSERA_ASSIGN_OR_RETURN(const offload::Usage usage,
                               PredictState(model, {.stage = stage}, ranks));
      std::cout << std::setw(5) << stage << std::setw(3) << ranks;
      for (const offload::Purpose purpose :
           {offload::Purpose::kParameters, offload::Purpose::kGradients,
            offload::Purpose::kOptimizer}) {
        std::cout << std::setw(14) << usage.of(purpose).current;
      }
      std::cout << std::setw(14) << usage.peak << "\n";
    }
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
