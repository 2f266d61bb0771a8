#include "tools/comm_bench/bench_engines.h"

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

using collectives::Communicator;
using collectives::Engine;
using Engines = std::vector<std::unique_ptr<Engine>>;
using Devices = std::vector<std::shared_ptr<Device>>;

absl::StatusOr<Engines> Alone(absl::StatusOr<std::unique_ptr<Engine>> engine) {
  if (!engine.ok()) return engine.status();
  Engines engines;
  engines.push_back(*std::move(engine));
  return engines;
}

absl::StatusOr<Engines> MakeThreads(const LocalRanks& local) {
  return collectives::CreateInProcessEngines(local.world);
}

absl::StatusOr<Engines> MakeSharedMemory(const LocalRanks& local) {
  return Alone(collectives::CreateSharedMemoryEngine(*local.store));
}

BenchEngine Registered(const std::string& name,
                       const std::map<std::string, std::string>& options = {}) {
  return {
      .is_mpi = name == "mpi", .make = [=](const LocalRanks& local) {
        return Alone(collectives::CreateEngine(name, {.rank = local.ranks[0],
                                                      .size = local.world,
                                                      .store = local.store,
                                                      .options = options}));
      }};
}

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

absl::StatusOr<Devices> GpusInTurn(const LocalRanks& local) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> usable, UsableGpus());
  std::map<int, std::shared_ptr<Device>> by_ordinal;
  Devices devices;
  for (const topology::Rank rank : local.ranks) {
    const int ordinal =
        usable[static_cast<size_t>(rank.value()) % usable.size()];
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
absl::StatusOr<Devices> OneGpuEach(const LocalRanks& local) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> usable, UsableGpus());
  const int64_t rank = local.ranks[0].value();
  if (rank < static_cast<int64_t>(usable.size())) return GpusInTurn(local);
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", rank, " has no GPU: ", usable.size(),
      " are usable and nccl needs one for each rank; use --np=", usable.size(),
      ", or --engine=cuda, whose ranks share"));
}

absl::StatusOr<Devices> OneEmulatedDevice(const LocalRanks& local) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device,
                           EmulatedDevice::Create());
  return Devices(local.ranks.size(), device);
}

absl::StatusOr<std::unique_ptr<Communicator>> OnNccl(
    std::unique_ptr<Communicator> host, Device& device) {
  return collectives::CreateNcclCommunicator(std::move(host), device);
}

using ByName = std::map<std::string, BenchEngine, std::less<>>;

ByName HostEngines() {
  ByName engines;
  for (const std::string& name : collectives::RegisteredEngines()) {
    engines[name] = Registered(name);
    if (name == "mpi") {
      engines["mpi_blocking"] = Registered(name, {{"blocking", "true"}});
    }
  }
  engines["in_process"] = {.is_threads = true, .make = MakeThreads};
  engines["shared_memory"] = {.make = MakeSharedMemory};
  return engines;
}

std::map<std::string, ByName, std::less<>> AllEngines() {
  const auto cuda = [](auto devices, auto on_device) {
    return BenchEngine{.is_threads = true,
                       .make = MakeThreads,
                       .devices = devices,
                       .on_device = on_device};
  };
  return {
      {"cpu", HostEngines()},
      {"cuda",
       {{"cuda", cuda(GpusInTurn, collectives::native::CreateCudaCommunicator)},
        {"nccl",
         {.make = MakeSharedMemory,
          .devices = OneGpuEach,
          .on_device = OnNccl}}}},
      {"emulated",
       {{"cuda", cuda(OneEmulatedDevice,
                      collectives::emulated::CreateCudaCommunicator)}}}};
}

}  // namespace

absl::StatusOr<BenchEngine> FindBenchEngine(std::string_view device,
                                            std::string_view name) {
  std::string known;
  for (const auto& [place, engines] : AllEngines()) {
    absl::StrAppend(&known, known.empty() ? "" : "; ", "--device=", place, ":");
    for (const auto& [engine, made] : engines) {
      if (place == device && engine == name) return made;
      absl::StrAppend(&known, " ", engine);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown engine \"", name.substr(0, 63), "\" with --device=",
      device.substr(0, 63), " in this binary; the engines are: ", known));
}

}  // namespace tessera::tools
