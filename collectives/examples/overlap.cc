// Gradients are averaged in buckets while the rest of them is still computed.
#include <iostream>
#include <span>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "collectives/buckets/bucket_reducer.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"

namespace {

using namespace tessera::collectives;

absl::Status Train(Communicator& communicator) {
  std::vector<std::vector<float>> gradients(6, std::vector<float>(1000));
  std::vector<Buffer> buffers;
  for (auto& gradient : gradients) buffers.emplace_back(std::span(gradient));
  TESSERA_ASSIGN_OR_RETURN(
      auto reducer,
      BucketReducer::Create(communicator, buffers, {.bucket_bytes = 8192}));
  for (int64_t layer = 5; layer >= 0; --layer) {
    // The backward pass of one layer.
    for (float& g : gradients[static_cast<size_t>(layer)]) {
      g = static_cast<float>(layer + communicator.rank().value());
    }
    TESSERA_RETURN_IF_ERROR(reducer->MarkReady(layer));
  }
  TESSERA_RETURN_IF_ERROR(reducer->Finish());
  if (communicator.rank().value() == 0) {
    std::cout << "layer 4 averages to " << gradients[4][0] << ", in "
              << reducer->plan().buckets.size() << " messages\n";
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
