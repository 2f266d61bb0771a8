// How the state of a model divides over ranks, before anything is allocated.
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>

#include "base/device/host_device.h"
#include "base/status_macros.h"
#include "base/tensor/counting_memory.h"
#include "collectives/communicator.h"
#include "collectives/counting/counting_engine.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/sharded_state.h"

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

// The state of rank 0, in memory that is only counted, in a world of which no
// other rank exists.
absl::StatusOr<offload::Usage> UsageOf(const ModelParameters& model, int stage,
                                       int64_t ranks) {
  const auto memory = std::make_shared<CountingMemory>();
  CountingDevice device(memory, memory);
  TESSERA_ASSIGN_OR_RETURN(const auto queue, device.CreateQueue("compute"));
  TESSERA_ASSIGN_OR_RETURN(
      auto engine,
      collectives::CreateCountingEngine({.ranks = ranks, .memory = memory}));
  TESSERA_ASSIGN_OR_RETURN(
      const auto group, collectives::Communicator::Create(std::move(engine)));
  ShardedStateOptions options;
  options.stage = stage;
  options.queue = queue.get();
  options.ops = DryStateOps();
  TESSERA_ASSIGN_OR_RETURN(
      const auto state,
      ShardedState::Create(model, options, {.shard = group.get()}));
  return state->usage();
}

absl::Status Run() {
  TESSERA_ASSIGN_OR_RETURN(const ModelParameters model, TwentyFourLayers());
  std::cout << model.elements() << " elements, " << model.bytes()
            << " bytes\n\nstage  N    parameters     gradients     optimizer\n";
  for (const int stage : {0, 1, 2, 3}) {
    for (const int64_t ranks : {1, 8}) {
      TESSERA_ASSIGN_OR_RETURN(const offload::Usage usage,
                               UsageOf(model, stage, ranks));
      std::cout << std::setw(5) << stage << std::setw(3) << ranks;
      for (const offload::Purpose purpose :
           {offload::Purpose::kParameters, offload::Purpose::kGradients,
            offload::Purpose::kOptimizer}) {
        std::cout << std::setw(14) << usage.of(purpose).current;
      }
      std::cout << "\n";
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
