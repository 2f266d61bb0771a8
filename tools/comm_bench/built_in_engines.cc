#include "tools/comm_bench/built_in_engines.h"

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/in_process/in_process.h"
#include "collectives/shared_memory/shared_memory.h"

namespace tessera::tools {
namespace {

using collectives::Engine;

EngineEntry::MakeOne FromRegistry(
    const std::string& name, std::map<std::string, std::string> options = {}) {
  return [name, options = std::move(options)](const RankSeat& seat) {
    collectives::EngineSetup setup;
    setup.rank = seat.rank;
    setup.size = seat.world;
    setup.store = seat.store;
    setup.options = options;
    return collectives::CreateEngine(name, setup);
  };
}

absl::StatusOr<std::unique_ptr<Engine>> RefuseNccl(const RankSeat&) {
  return absl::UnimplementedError(
      "nccl's buffers are device memory, which comm_bench does not write yet; "
      "leave nccl out of --engine");
}

void AddRegistered(EngineCatalogue* catalogue) {
  for (const std::string& name : collectives::RegisteredEngines()) {
    const Launch launch = name == "mpi" ? Launch::kMpirun : Launch::kProcesses;
    catalogue->AddProcesses(name, launch, FromRegistry(name));
    if (name == "mpi") {
      catalogue->AddProcesses("mpi_blocking", launch,
                              FromRegistry(name, {{"blocking", "true"}}));
    }
    if (name == "nccl") catalogue->AddProcesses(name, launch, RefuseNccl);
  }
}

}  // namespace

EngineCatalogue BuiltInEngines() {
  EngineCatalogue catalogue;
  AddRegistered(&catalogue);
  catalogue.AddThreads("in_process", [](int64_t world) {
    return collectives::CreateInProcessEngines(world);
  });
  catalogue.AddProcesses(
      "shared_memory", Launch::kProcesses, [](const RankSeat& seat) {
        return collectives::CreateSharedMemoryEngine(*seat.store);
      });
  return catalogue;
}

}  // namespace tessera::tools
