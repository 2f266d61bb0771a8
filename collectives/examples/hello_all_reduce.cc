// Four ranks, as threads of this process, add up their numbers.
#include <iostream>
#include <span>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"

int main() {
  using namespace tessera::collectives;
  auto engines = CreateInProcessEngines(4);
  std::vector<std::thread> ranks;
  for (auto& engine : *engines) {
    ranks.emplace_back([&engine] {
      auto communicator = Communicator::Create(std::move(engine));
      std::vector<float> values(3, 1.0f + (*communicator)->rank().value());
      const absl::Status status =
          (*communicator)
              ->AllReduce(Buffer(std::span(values)), Reduction::Sum());
      if ((*communicator)->rank().value() == 0) {
        std::cout << status << ": 1 + 2 + 3 + 4 = " << values[0] << "\n";
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}
