// How the state of a model divides over ranks, before anything is allocated.
#include <iomanip>
#include <iostream>
#include <string>

#include "base/status_macros.h"
#include "zero3/config/zero_config_builder.h"
#include "zero3/estimate/estimate_memory.h"
#include "zero3/layout/moves.h"
#include "zero3/parameters/statistics.h"

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
  std::cout << StatisticsOf(model).ToString() << "\n\n";
  TESSERA_ASSIGN_OR_RETURN(const ZeroConfig config,
                           ZeroConfigBuilder().OffloadAll(false).Build());
  std::cout << " N        copies     gradients       masters       moments"
               "          16P/N\n";
  for (const int64_t ranks : {1, 2, 4, 8}) {
    TESSERA_ASSIGN_OR_RETURN(const MemoryUse use,
                             EstimateMemory(model, config, {.ranks = ranks}));
    std::cout << std::setw(2) << ranks;
    for (const Purpose purpose : {Purpose::kCopies, Purpose::kGradients,
                                  Purpose::kMasterWeights, Purpose::kMoments}) {
      std::cout << std::setw(14) << use.Of(purpose);
    }
    std::cout << std::setw(15) << use.ModelState() << "\n";
  }
  // From a checkpoint of 8 ranks into 6 with another layout.
  TESSERA_ASSIGN_OR_RETURN(const StateLayout saved,
                           StateLayout::Create(model, {.ranks = 8}));
  TESSERA_ASSIGN_OR_RETURN(
      const StateLayout layout,
      StateLayout::Create(model, {.kind = LayoutKind::kBalanced, .ranks = 6}));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Move> moves,
                           MovesTo(saved, layout, topology::Rank(0)));
  std::cout << "\nrank 0 of 6 reads " << moves.size() << " pieces of 8 shards, "
            << layout.all(topology::Rank(0)).size() << " elements\n";
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
