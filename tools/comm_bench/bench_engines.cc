#include "tools/comm_bench/bench_engines.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/device/cuda_device.h"
#include "base/device/emulated_device.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/bootstrap/network_options.h"
#include "collectives/cuda/cuda_communicator.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/in_process/in_process.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/shared_memory/shared_memory.h"
#include "collectives/two_level/two_level_engine.h"

namespace tessera::tools {
namespace {

using collectives::Communicator;
using collectives::Engine;
using topology::Rank;

constexpr absl::Duration kJoinTimeout = absl::Seconds(30);

std::vector<std::string> NamesFor(std::string_view device) {
  if (device == "cuda") return {"cuda", "nccl"};
  if (device == "emulated") return {"cuda"};
  std::vector<std::string> names = collectives::RegisteredEngines();
  if (std::find(names.begin(), names.end(), "mpi") != names.end()) {
    names.push_back("mpi_blocking");
  }
  names.insert(names.end(), {"in_process", "shared_memory"});
  return names;
}

// The engine of this process's only rank.
absl::StatusOr<std::unique_ptr<Engine>> MakeProcess(const std::string& name,
                                                    const LocalRanks& local) {
  if (name == "shared_memory" || name == "nccl") {
    return collectives::CreateSharedMemoryEngine(*local.store);
  }
  collectives::EngineSetup setup = {
      .rank = local.ranks[0], .size = local.world, .store = local.store};
  if (name == "gloo" || name == "auto") {
    TESSERA_ASSIGN_OR_RETURN(
        setup.options, collectives::NetworkOptions(
                           collectives::ProcessEnvironment(), kJoinTimeout));
  }
  if (name != "mpi_blocking") return collectives::CreateEngine(name, setup);
  setup.options = {{"blocking", "true"}};
  return collectives::CreateEngine("mpi", setup);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeControlEngine(
    collectives::Store& store) {
  constexpr char kName[] = "comm_bench";
  return collectives::CreateTwoLevelEngine(
      store, {.shared_memory = {.name = kName}},
      [&]() -> absl::StatusOr<std::unique_ptr<Engine>> {
        collectives::EngineSetup setup = {
            .rank = store.rank(), .size = store.size(), .store = &store};
        TESSERA_ASSIGN_OR_RETURN(
            setup.options,
            collectives::NetworkOptions(collectives::ProcessEnvironment(),
                                        kJoinTimeout));
        setup.options["name"] = kName;
        return collectives::CreateEngine("gloo", setup);
      });
}

namespace {

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

// Gives the GPUs to the ranks in turn. NCCL refuses two ranks on one GPU.
absl::Status AddGpus(const std::vector<Rank>& ranks, bool share,
                     std::vector<RankParts>& parts) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> usable, UsableGpus());
  std::map<int, std::shared_ptr<Device>> by_ordinal;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto rank = static_cast<size_t>(ranks[i].value());
    if (rank >= usable.size() && !share) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " has no GPU: ", usable.size(),
          " are usable and nccl needs one for each rank; use --np=",
          usable.size(), ", or --engine=cuda, whose ranks share"));
    }
    const int ordinal = usable[rank % usable.size()];
    std::shared_ptr<Device>& device = by_ordinal[ordinal];
    if (device == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(device,
                               CudaDevice::Create({.ordinal = ordinal}));
    }
    parts[i].device = device;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchEngine::Check() const {
  std::string known;
  for (const std::string_view place : {"cpu", "cuda", "emulated"}) {
    const std::vector<std::string> names = NamesFor(place);
    if (place == device &&
        std::find(names.begin(), names.end(), name) != names.end()) {
      return absl::OkStatus();
    }
    absl::StrAppend(&known, known.empty() ? "" : "; ", "--device=", place, ": ",
                    absl::StrJoin(names, " "));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown engine \"", name, "\" with --device=", device,
                   " in this binary; the engines are: ", known));
}

bool BenchEngine::IsThreads() const {
  return name == (device == "cpu" ? "in_process" : "cuda");
}

absl::StatusOr<std::vector<RankParts>> BenchEngine::Make(
    const LocalRanks& local) const {
  std::vector<RankParts> parts(local.ranks.size());
  if (IsThreads()) {
    TESSERA_ASSIGN_OR_RETURN(auto engines,
                             collectives::CreateInProcessEngines(local.world));
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].engine = std::move(engines[i]);
    }
  } else {
    TESSERA_ASSIGN_OR_RETURN(parts[0].engine, MakeProcess(name, local));
  }
  if (device == "cuda") {
    TESSERA_RETURN_IF_ERROR(AddGpus(local.ranks, name == "cuda", parts));
  } else if (device == "emulated") {
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Device> emulated,
                             EmulatedDevice::Create());
    for (RankParts& part : parts) part.device = emulated;
  }
  return parts;
}

absl::StatusOr<std::unique_ptr<Communicator>> BenchEngine::OnDevice(
    std::unique_ptr<Communicator> host, Device& on_device) const {
  if (name == "nccl") {
    return collectives::CreateNcclCommunicator(std::move(host), on_device);
  }
  return device == "cuda" ? collectives::native::CreateCudaCommunicator(
                                std::move(host), on_device)
                          : collectives::emulated::CreateCudaCommunicator(
                                std::move(host), on_device);
}

}  // namespace tessera::tools
