#include "tools/comm_bench/engine_catalogue.h"

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/in_process/in_process.h"
#include "collectives/shared_memory/shared_memory.h"

namespace tessera::tools {

void EngineCatalogue::AddThreads(std::string_view name,
                                 EngineEntry::MakeAll make) {
  EngineEntry entry;
  entry.launch = LaunchMethod::kThreads;
  entry.make_all = std::move(make);
  entries_[std::string(name)] = std::move(entry);
}

void EngineCatalogue::AddProcesses(std::string_view name, LaunchMethod launch,
                                   EngineEntry::MakeOne make) {
  EngineEntry entry;
  entry.launch = launch;
  entry.make_one = std::move(make);
  entries_[std::string(name)] = std::move(entry);
}

absl::StatusOr<EngineEntry> EngineCatalogue::Find(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  std::string names;
  for (const auto& [known, entry] : entries_) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", known);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown engine \"", name.substr(0, 63),
                   "\" in this binary; the engines are: ", names));
}

namespace {

using collectives::Engine;

EngineEntry::MakeOne FromRegistry(
    const std::string& name, std::map<std::string, std::string> options = {}) {
  return [name, options = std::move(options)](const EngineRank& rank) {
    collectives::EngineSetup setup;
    setup.rank = rank.rank;
    setup.size = rank.world;
    setup.store = rank.store;
    setup.options = options;
    return collectives::CreateEngine(name, setup);
  };
}

absl::StatusOr<std::unique_ptr<Engine>> RefuseNccl(const EngineRank&) {
  return absl::UnimplementedError(
      "nccl's buffers are device memory, which comm_bench does not write yet; "
      "leave nccl out of --engine");
}

void AddRegistered(EngineCatalogue* catalogue) {
  for (const std::string& name : collectives::RegisteredEngines()) {
    const LaunchMethod launch =
        name == "mpi" ? LaunchMethod::kMpirun : LaunchMethod::kProcesses;
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
      "shared_memory", LaunchMethod::kProcesses, [](const EngineRank& rank) {
        return collectives::CreateSharedMemoryEngine(*rank.store);
      });
  return catalogue;
}

}  // namespace tessera::tools
