// Reads the parallel configuration of a job, divides the layers of its model,
// and lists everything that is wrong with it.

#include "topology/config/parallel_config.h"

#include <iostream>
#include <vector>

int main() {
  using namespace tessera::topology;
  auto config = ParallelConfig::FromJson(R"({
    "mesh": "dp2,pp4,tp2", "layers": 10, "dtype": "bf16",
    "memory_strategy": "standard", "device_budget": "80GiB"})");
  if (!config.ok() || !config->Validate(/*world_size=*/16).ok()) return 1;
  const auto print = [&](const char* how, const std::vector<double>& costs) {
    std::cout << how << ":";
    const auto stages = config->LayersPerStage(costs);
    for (const int64_t layers : *stages) std::cout << " " << layers;
    std::cout << " layers per stage\n";
  };
  print("even", {});
  config->split.by_cost = true;  // The last layer includes the head.
  print("by cost", {1, 1, 1, 1, 1, 1, 1, 1, 1, 3});

  config->layers = 3;
  config->micro_batch = 0;
  std::cout << config->Validate(/*world_size=*/24).message() << "\n";
}
