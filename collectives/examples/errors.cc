// Shows the errors of all ranks when one rank calls a different operation.
#include <iostream>
#include <span>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"

int main() {
  using namespace tessera::collectives;
  auto engines = CreateInProcessEngines(2);
  std::vector<std::thread> ranks;
  for (auto& engine : *engines) {
    ranks.emplace_back([&engine] {
      auto communicator = Communicator::Create(std::move(engine));
      const bool first = (*communicator)->rank().value() == 0;
      std::vector<float> values(first ? 100 : 99, 1.0f);
      const absl::Status status =
          (*communicator)
              ->AllReduce(Buffer(std::span(values)), Reduction::Sum());
      if (first) std::cout << status.message() << "\n";
    });
  }
  for (std::thread& rank : ranks) rank.join();
}
