#include <iostream>
#include <span>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/groups/group_manager.h"
#include "collectives/in_process/in_process.h"
#include "topology/mesh.h"

namespace {

using namespace tessera::collectives;

// One rank's forwards and backwards of two micro-batches. Each stage adds its
// number to the activations.
absl::Status Train(Communicator& world, const tessera::topology::Mesh& mesh) {
  TESSERA_ASSIGN_OR_RETURN(auto groups, GroupManager::Create(world, mesh));
  std::vector<float> gradients(4);
  for (int32_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
    std::vector<float> activations(4, 1.0f);
    const Buffer message{std::span(activations)};
    if (!groups->IsFirstStage()) {
      TESSERA_RETURN_IF_ERROR(
          groups->ReceiveFromPreviousStage(message, micro_batch));
    }
    for (float& x : activations) x += static_cast<float>(groups->stage());
    if (!groups->IsLastStage()) {
      TESSERA_RETURN_IF_ERROR(groups->SendToNextStage(message, micro_batch));
      TESSERA_RETURN_IF_ERROR(
          groups->ReceiveFromNextStage(message, micro_batch));
    }
    for (size_t i = 0; i < 4; ++i) gradients[i] += activations[i];
    if (!groups->IsFirstStage()) {
      TESSERA_RETURN_IF_ERROR(
          groups->SendToPreviousStage(message, micro_batch));
    }
  }
  const Buffer sum{std::span(gradients)};
  TESSERA_RETURN_IF_ERROR(
      groups->Run("dp", AllReduceOf(sum, sum, Reduction::Average())));
  // The stages that hold a tied embedding.
  TESSERA_ASSIGN_OR_RETURN(Communicator* const ends, groups->EndsGroup("pp"));
  if (ends != nullptr) {
    TESSERA_RETURN_IF_ERROR(ends->AllReduce(sum, Reduction::Sum()));
  }
  if (world.rank().value() > 0) return absl::OkStatus();
  std::cout << "gradient " << gradients[0] << "; "
            << groups->SendToPreviousStage(sum).message() << "\n";
  for (const auto& [name, statistics] : groups->Statistics()) {
    const OperationTotals total = Total(statistics);
    std::cout << name << ": operations " << total.count << ", bytes "
              << total.bytes << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  const auto axes = tessera::topology::ParseAxes("dp2,pp3");
  const auto mesh = tessera::topology::Mesh::Create(*axes);
  auto engines = CreateInProcessEngines(mesh->world_size());
  std::vector<std::thread> ranks;
  for (auto& engine : *engines) {
    ranks.emplace_back([&engine, &mesh] {
      auto world = Communicator::Create(std::move(engine));
      const absl::Status status = Train(**world, *mesh);
      if (!status.ok()) std::cerr << status << "\n";
    });
  }
  for (std::thread& rank : ranks) rank.join();
}
