// Averages gradients while the next layers compute theirs.
#include <iostream>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"

namespace {

using namespace tessera::collectives;

absl::Status Train(Communicator& communicator) {
  std::vector<std::vector<float>> gradients(6, std::vector<float>(1000));
  std::vector<Work> reductions;
  for (size_t layer = gradients.size(); layer-- > 0;) {
    // The backward pass of one layer.
    for (float& g : gradients[layer]) {
      g = static_cast<float>(static_cast<int64_t>(layer) +
                             communicator.rank().value());
    }
    // Runs while the next layer computes.
    const Buffer buffer{std::span(gradients[layer])};
    TESSERA_ASSIGN_OR_RETURN(
        Work reduction,
        communicator.Start(AllReduceOf(buffer, buffer, Reduction::Average())));
    reductions.push_back(std::move(reduction));
  }
  for (const Work& reduction : reductions) {
    TESSERA_RETURN_IF_ERROR(reduction.Wait());
  }
  if (communicator.rank().value() == 0) {
    std::cout << "layer 4 averages to " << gradients[4][0] << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  auto engines = CreateInProcessEngines(2);
  std::vector<std::thread> ranks;
  for (auto& engine : *engines) {
    ranks.emplace_back([&engine] {
      auto communicator = Communicator::Create(std::move(engine));
      const absl::Status status = Train(**communicator);
      if (!status.ok()) std::cerr << status << "\n";
    });
  }
  for (std::thread& rank : ranks) rank.join();
}
