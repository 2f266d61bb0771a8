#include "tools/comm_bench/engine_catalogue.h"

#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda_device.h"
#include "base/device/emulated_device.h"
#include "base/status_macros.h"
#include "collectives/cuda/cuda_communicator.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/in_process/in_process.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/shared_memory/shared_memory.h"

namespace tessera::tools {

namespace {

constexpr std::string_view kCpu = "cpu";

}  // namespace

void EngineCatalogue::AddThreads(std::string_view name,
                                 EngineEntry::MakeAll make) {
  EngineEntry entry;
  entry.launch = LaunchMethod::kThreads;
  entry.make_all = std::move(make);
  AddOnDevice(kCpu, name, std::move(entry));
}

void EngineCatalogue::AddProcesses(std::string_view name, LaunchMethod launch,
                                   EngineEntry::MakeOne make) {
  EngineEntry entry;
  entry.launch = launch;
  entry.make_one = std::move(make);
  AddOnDevice(kCpu, name, std::move(entry));
}

void EngineCatalogue::AddOnDevice(std::string_view device,
                                  std::string_view name, EngineEntry entry) {
  entries_[std::string(device)][std::string(name)] = std::move(entry);
}

absl::StatusOr<EngineEntry> EngineCatalogue::Find(std::string_view device,
                                                  std::string_view name) const {
  std::string known;
  for (const auto& [place, entries] : entries_) {
    absl::StrAppend(&known, known.empty() ? "" : "; ", "--device=", place, ":");
    for (const auto& [engine, entry] : entries) {
      if (place == device && engine == name) return entry;
      absl::StrAppend(&known, " ", engine);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown engine \"", name.substr(0, 63), "\" with --device=",
      device.substr(0, 63), " in this binary; the engines are: ", known));
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

void AddRegistered(EngineCatalogue* catalogue) {
  for (const std::string& name : collectives::RegisteredEngines()) {
    const LaunchMethod launch =
        name == "mpi" ? LaunchMethod::kMpirun : LaunchMethod::kProcesses;
    catalogue->AddProcesses(name, launch, FromRegistry(name));
    if (name == "mpi") {
      catalogue->AddProcesses("mpi_blocking", launch,
                              FromRegistry(name, {{"blocking", "true"}}));
    }
  }
}

using Devices = std::vector<std::shared_ptr<Device>>;

// The GPUs that ranks can have, in the order of their numbers.
absl::StatusOr<std::vector<int>> UsableGpus() {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> found,
                           FindCudaDevices());
  std::vector<int> usable;
  for (const CudaDeviceInfo& gpu : found) {
    if (gpu.usable.ok()) usable.push_back(gpu.ordinal);
  }
  if (usable.empty()) return found[0].usable;
  return usable;
}

absl::StatusOr<Devices> GpusInTurn(int64_t first, int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> usable, UsableGpus());
  std::map<int, std::shared_ptr<Device>> by_ordinal;
  Devices devices;
  for (int64_t rank = first; rank < first + count; ++rank) {
    const int ordinal = usable[static_cast<size_t>(rank) % usable.size()];
    std::shared_ptr<Device>& device = by_ordinal[ordinal];
    if (device == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(device,
                               CudaDevice::Create({.ordinal = ordinal}));
    }
    devices.push_back(device);
  }
  return devices;
}

// NCCL refuses two ranks on one GPU.
absl::StatusOr<Devices> AGpuEach(int64_t first, int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> usable, UsableGpus());
  if (first + count > static_cast<int64_t>(usable.size())) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", first + count - 1, " has no GPU: ", usable.size(),
                     " are usable and nccl needs one for each rank; use "
                     "--np=",
                     usable.size(), ", or --engine=cuda, whose ranks share"));
  }
  return GpusInTurn(first, count);
}

absl::StatusOr<Devices> OneEmulatedDevice(int64_t /*first*/, int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device,
                           EmulatedDevice::Create());
  return Devices(static_cast<size_t>(count), device);
}

void AddDeviceEngines(EngineCatalogue* catalogue) {
  EngineEntry threads;
  threads.launch = LaunchMethod::kThreads;
  threads.make_all = [](int64_t world) {
    return collectives::CreateInProcessEngines(world);
  };
  threads.on_device = {GpusInTurn, collectives::native::CreateCudaCommunicator};
  catalogue->AddOnDevice("cuda", "cuda", threads);
  threads.on_device = {OneEmulatedDevice,
                       collectives::emulated::CreateCudaCommunicator};
  catalogue->AddOnDevice("emulated", "cuda", threads);
  EngineEntry processes;
  processes.launch = LaunchMethod::kProcesses;
  processes.make_one = [](const EngineRank& rank) {
    return collectives::CreateSharedMemoryEngine(*rank.store);
  };
  processes.on_device = {
      AGpuEach,
      [](std::unique_ptr<collectives::Communicator> host, Device& device) {
        return collectives::CreateNcclCommunicator(std::move(host), device);
      }};
  catalogue->AddOnDevice("cuda", "nccl", std::move(processes));
}

}  // namespace

EngineCatalogue BuiltInEngines() {
  EngineCatalogue catalogue;
  AddRegistered(&catalogue);
  AddDeviceEngines(&catalogue);
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
